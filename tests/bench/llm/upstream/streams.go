package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const opening = 10 * time.Second

// stream opens streams over ten seconds, each on a connection of its own, and reads them to their
// ends. It prints two lines of JSON: when each stream has had its first byte or has failed, and when
// all have ended, how many were whole.
func stream(url string, body []byte, count int) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var begun, ended sync.WaitGroup
	var open, whole atomic.Int64
	var cause atomic.Value
	begun.Add(count)
	for number := range count {
		ended.Add(1)
		go func() {
			defer ended.Done()
			time.Sleep(opening * time.Duration(number) / time.Duration(count))
			note := sync.OnceFunc(begun.Done)
			err := readStream(client, url, body, func() { open.Add(1); note() })
			note()
			if err == nil {
				whole.Add(1)
			} else {
				cause.CompareAndSwap(nil, err.Error())
			}
		}()
	}
	out := json.NewEncoder(os.Stdout)
	begun.Wait()
	out.Encode(map[string]any{"open": open.Load(), "error": cause.Load()})
	ended.Wait()
	out.Encode(map[string]any{"whole": whole.Load(), "error": cause.Load()})
}

// readStream returns an error unless the stream has all of its chunks.
func readStream(client *http.Client, url string, body []byte, begun func()) error {
	response, err := post(client, url, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	seen := make([]byte, 0, chunks*256)
	piece := make([]byte, 4096)
	for err == nil {
		var size int
		size, err = response.Body.Read(piece)
		if size > 0 && len(seen) == 0 {
			begun()
		}
		seen = append(seen, piece[:size]...)
	}
	if err != io.EOF {
		return err
	}
	// the last piece has the usage and the end, of which a client sees what it has asked for
	if got := bytes.Count(seen, []byte("data: {")); got < chunks-1 {
		return fmt.Errorf("%d chunks", got)
	}
	if !bytes.HasSuffix(seen, []byte("data: [DONE]\n\n")) {
		return fmt.Errorf("no end")
	}
	return nil
}
