// Two programs of the stage llm: the upstream that all contestants pass requests on to, and a load
// of a constant rate.
//
//	llmbench upstream PORT
//	llmbench load URL RATE SECONDS <BODY    (the key is in LLM_KEY)
package main

import (
	"io"
	"log"
	"os"
	"strconv"
	"time"
)

func main() {
	switch os.Args[1] {
	case "upstream":
		serve(os.Args[2])
	case "load":
		body, err := io.ReadAll(os.Stdin)
		if err != nil {
			log.Fatal(err)
		}
		length := time.Duration(number(os.Args[4]) * float64(time.Second))
		load(os.Args[2], os.Getenv("LLM_KEY"), body, number(os.Args[3]), length)
	default:
		log.Fatalf("no such command: %s", os.Args[1])
	}
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}
