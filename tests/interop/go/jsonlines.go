package main

import (
	"encoding/json"
	"os"
	"sync"
)

type fields map[string]any

var standardOutput sync.Mutex

// emit writes one JSON object as one line; consumers call it from many goroutines.
func emit(event string, values fields) {
	values["event"] = event
	line, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	standardOutput.Lock()
	defer standardOutput.Unlock()
	os.Stdout.Write(append(line, '\n'))
}
