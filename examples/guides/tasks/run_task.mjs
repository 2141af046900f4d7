// Create a task, wait for its end and download the video. Node.js 20 or newer.
import { randomUUID } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const { GATEWAY_BASE_URL, GATEWAY_SERVICE, GATEWAY_API_KEY, GATEWAY_MODEL } = process.env;
const url = `${GATEWAY_BASE_URL}/api/v1/${GATEWAY_SERVICE}/reference_to_video`;

// Send a request; again after a failure that may pass.
async function call(target, options = {}) {
  const headers = { Authorization: `Bearer ${GATEWAY_API_KEY}`, ...options.headers };
  for (let delay = 1; ; delay *= 2) {
    let wait = delay;
    try {
      const signal = AbortSignal.timeout(60_000);
      const response = await fetch(target, { ...options, headers, signal });
      const final = response.headers.get("x-should-retry") === "false";
      if (![429, 500, 502, 503, 504].includes(response.status) || final || delay > 16) return response;
      wait = Number(response.headers.get("retry-after") ?? delay);
    } catch (error) {
      if (delay > 16) throw error;
    }
    await sleep(wait * 1000);
  }
}

// made once for each task and kept with it: a repeated create returns the same task
const idempotencyKey = randomUUID();
let response = await call(url, {
  method: "POST",
  headers: { "Content-Type": "application/json", "Idempotency-Key": idempotencyKey },
  body: JSON.stringify({
    model: GATEWAY_MODEL,
    prompt: "A lighthouse at dawn",
    reference_image_urls: ["https://example.com/lighthouse.png"],
  }),
});
if (response.status !== 202) {
  throw new Error(`refused with ${response.status}: ${await response.text()}`);
}
let task = await response.json();
console.log("created", task.id);

for (let pause = 1; task.status === "processing"; pause = Math.min(pause * 1.5, 15)) {
  await sleep(pause * 1000);
  response = await call(`${url}/${task.id}`);
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  task = await response.json();
}
if (task.status === "failed") throw new Error(`${task.id} failed: ${task.error}`);
console.log("completed for", task.usage.cost, "USD");

const video = await fetch(task.videos[0].url);
if (!video.ok) throw new Error(`the video cannot be read: ${video.status}`);
const bytes = Buffer.from(await video.arrayBuffer());
await writeFile("video.mp4", bytes);
console.log("video.mp4:", bytes.length, "bytes");
