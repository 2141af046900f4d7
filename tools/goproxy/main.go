// A reverse proxy of Go's standard library with one connection to its target,
// which all clients share.
package main

import (
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	target, err := url.Parse(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}
	proxy.ErrorLog = log.New(os.Stderr, "", 0)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	os.Stdout.WriteString(listener.Addr().String() + "\n")
	log.Fatal(http.Serve(listener, proxy))
}
