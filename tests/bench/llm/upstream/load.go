package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Times of one request, from its start: the first byte of the body, and the last.
type times struct{ first, last time.Duration }

const connections = 16

// load sends POSTs of a body at a constant rate over 16 connections, and prints percentiles in
// milliseconds as JSON. A connection that falls behind leaves requests out, rather than add those
// of a stall of the machine to the load. A failed request ends the program.
func load(url string, body []byte, rate float64, length time.Duration) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	interval := time.Duration(connections / rate * float64(time.Second))
	taken := make([][]times, connections)
	var group sync.WaitGroup
	begin := time.Now()
	for worker := range taken {
		group.Add(1)
		go func() {
			defer group.Done()
			due := begin.Add(interval * time.Duration(worker) / connections)
			for due.Before(begin.Add(length)) {
				time.Sleep(time.Until(due))
				one, err := timePost(client, url, body)
				if err != nil {
					log.Fatal(err)
				}
				taken[worker] = append(taken[worker], one)
				due = due.Add(interval)
				if now := time.Now(); due.Before(now) {
					due = now
				}
			}
		}()
	}
	group.Wait()
	all := slices.Concat(taken...)
	first := func(t times) time.Duration { return t.first }
	last := func(t times) time.Duration { return t.last }
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"rate":      float64(len(all)) / time.Since(begin).Seconds(),
		"first_p50": percentile(all, first, 0.50),
		"first_p99": percentile(all, first, 0.99),
		"last_p50":  percentile(all, last, 0.50),
		"last_p99":  percentile(all, last, 0.99),
	})
}

func timePost(client *http.Client, url string, body []byte) (times, error) {
	begin := time.Now()
	response, err := post(client, url, body)
	if err != nil {
		return times{}, err
	}
	defer response.Body.Close()
	var one [1]byte
	if _, err := io.ReadFull(response.Body, one[:]); err != nil {
		return times{}, err
	}
	first := time.Since(begin)
	_, err = io.Copy(io.Discard, response.Body)
	return times{first, time.Since(begin)}, err
}

// post returns a response of status 200.
func post(client *http.Client, url string, body []byte) (*http.Response, error) {
	request, err := http.NewRequest("POST", url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	for _, line := range strings.Split(os.Getenv("LLM_HEADERS"), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		content, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		return nil, fmt.Errorf("status %d: %s", response.StatusCode, content)
	}
	return response, nil
}

func percentile(all []times, pick func(times) time.Duration, share float64) float64 {
	picked := make([]time.Duration, len(all))
	for i, t := range all {
		picked[i] = pick(t)
	}
	slices.Sort(picked)
	return picked[min(len(picked)-1, int(share*float64(len(picked))))].Seconds() * 1000
}
