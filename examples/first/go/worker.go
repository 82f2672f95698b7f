// Runs once for each message: the step's input comes on standard input, its output goes to standard output.
package main

import (
	"encoding/json"
	"log"
	"os"
)

func main() {
	var message struct{ Name string }
	if err := json.NewDecoder(os.Stdin).Decode(&message); err != nil {
		log.Fatal(err)
	}
	if message.Name == "" {
		log.Fatal("nobody to greet: the message has no name") // this fails the attempt, with these words
	}
	json.NewEncoder(os.Stdout).Encode(map[string]string{"greeting": "Hello, " + message.Name + "!"})
}
