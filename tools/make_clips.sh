#!/bin/sh
# Draws the video clips that the simulated provider serves, one per aspect ratio, with and without
# sound. Needs ffmpeg with libx264; run from anywhere; the files are committed, so it runs only when
# their look changes.
set -eu

cd "$(dirname "$0")/../simulator/gateway_simulator/clips"
seconds=2.5

draw() { # NAME SIZE with|silent
  clip=$1 size=$2 sound=$3
  if [ "$sound" = with ]; then
    set -- -f lavfi -i "sine=frequency=440:sample_rate=22050:duration=$seconds" -c:a aac -b:a 16k -ac 1
  else
    set -- -an
  fi
  # Metadata and encoder stamps are left out and one thread is used, so that a second run on the
  # same ffmpeg gives the same bytes.
  nice ffmpeg -y -v error -f lavfi -i "testsrc2=size=$size:rate=8:duration=$seconds" "$@" \
    -c:v libx264 -profile:v baseline -pix_fmt yuv420p -preset veryslow -crf 36 -g 50 -threads 1 \
    -fflags +bitexact -flags:v +bitexact -flags:a +bitexact -map_metadata -1 \
    -movflags +faststart "$clip.mp4"
}

while read -r name size; do
  draw "$name-audio" "$size" with </dev/null
  draw "$name-silent" "$size" silent </dev/null
done <<SIZES
16x9 320x180
9x16 320x568
1x1 320x320
4x3 320x240
3x4 320x426
SIZES
ls -l
