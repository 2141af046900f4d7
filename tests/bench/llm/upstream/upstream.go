package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"
)

const chunks = 64

var wantsStream = []byte(`"stream":true`)

const completion = `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,` +
	`"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":` +
	`"The lighthouse keeper climbs the stairs at dusk, trims the wick and waits for the ships."},` +
	`"logprobs":null,"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":180,"completion_tokens":64,"total_tokens":244}}`

func frame(delta, finish, usage string) []byte {
	return []byte(fmt.Sprintf(`data: {"id":"chatcmpl-bench","object":"chat.completion.chunk",`+
		`"created":1700000000,"model":"bench","choices":[{"index":0,"delta":%s,`+
		`"logprobs":null,"finish_reason":%s}]%s}`+"\n\n", delta, finish, usage))
}

func frames() [][]byte {
	all := [][]byte{frame(`{"role":"assistant","content":""}`, "null", "")}
	for len(all) < chunks-2 {
		all = append(all, frame(`{"content":" token"}`, "null", ""))
	}
	all = append(all, frame("{}", `"stop"`, ""))
	last := `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,` +
		`"model":"bench","choices":[],"usage":{"prompt_tokens":180,"completion_tokens":62,` +
		`"total_tokens":242}}` + "\n\ndata: [DONE]\n\n"
	return append(all, []byte(last))
}

// serve answers chat completions in OpenAI's format, as fast as net/http allows: a request for a
// stream with 64 chunks, each flushed on its own after a pause, any other with one completion.
func serve(port string, pause time.Duration, tls []string) {
	stream := frames()
	http.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if !bytes.Contains(body, wantsStream) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, completion)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, piece := range stream {
			time.Sleep(pause)
			if _, err := w.Write(piece); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	if len(tls) == 2 {
		log.Fatal(http.ListenAndServeTLS("127.0.0.1:"+port, tls[0], tls[1], nil))
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
