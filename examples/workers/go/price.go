// The worker for `price` of the README's first workflow, in Go: WORKFLOW_MANAGER_URL=http://127.0.0.1:8088 go run price.go
package main

import "bytes"
import "encoding/json"
import "io"
import "log"
import "net/http"
import "os"
import "time"

// Asks until there is an answer: the manager may be away for a while.
func post(path string, body []byte) (message []byte, replyTo string) {
	for ; ; time.Sleep(time.Second) {
		answer, err := http.Post(os.Getenv("WORKFLOW_MANAGER_URL")+path, "application/json", bytes.NewReader(body))
		if err == nil {
			message, err = io.ReadAll(answer.Body)
			if answer.Body.Close(); err == nil && answer.StatusCode < 300 {
				return message, answer.Header.Get("Reply-To")
			}
		}
		log.Println(path, err, string(message))
	}
}

func main() {
	for message, replyTo := post("/api/queue/price/receive", nil); ; message, replyTo = post("/api/queue/price/receive", nil) {
		var order map[string]map[string]any
		err := json.Unmarshal(message, &order)
		article, _ := order["line"]["article"].(string)
		count, _ := order["line"]["count"].(float64)
		if price := map[string]float64{"pen": 250, "ink": 990}[article]; replyTo != "" && err == nil && price > 0 {
			order["line"]["cents"] = price * count
			reply, _ := json.Marshal(order)
			post(replyTo, reply)
		} else if replyTo != "" { // without it, no message came within half a minute
			post(replyTo+"?type=error", []byte(`{"error":"this is no line with pens or ink"}`))
		}
	}
}
