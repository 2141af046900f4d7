// The programs of the stages llm: the upstream that all contestants pass requests on to, a load of a
// constant rate, and streams that are open at the same time.
//
//	llmbench upstream PORT [SECONDS [CERTIFICATE KEY]]
//	                                        (seconds between the chunks of a stream; files for TLS)
//	llmbench load URL RATE SECONDS <BODY    (headers are in LLM_HEADERS, a line each)
//	llmbench streams URL COUNT <BODY        (likewise)
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
		pause := time.Duration(0)
		if len(os.Args) > 3 {
			pause = seconds(os.Args[3])
		}
		serve(os.Args[2], pause, os.Args[min(4, len(os.Args)):])
	case "load":
		load(os.Args[2], readBody(), number(os.Args[3]), seconds(os.Args[4]))
	case "streams":
		stream(os.Args[2], readBody(), int(number(os.Args[3])))
	default:
		log.Fatalf("no such command: %s", os.Args[1])
	}
}

func readBody() []byte {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	return body
}

func seconds(text string) time.Duration {
	return time.Duration(number(text) * float64(time.Second))
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}
