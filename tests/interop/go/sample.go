package main

import (
	"fmt"
	"strings"
)

// Message number i, made from i alone, so that any client can check what any other sent.
// The README's table is the contract; the Java and Node drivers build the same bytes.

func sampleKey(index int) string { return fmt.Sprintf("key-%d", index) }

func sampleTag(index int) string { return []string{"TagA", "TagB", "TagC"}[index%3] }

func sampleText(index int) string { return fmt.Sprintf("Grüße 消息 🚀 №%d", index) }

// Every tenth body is long enough (over 4 KiB) that clients compress it.
func sampleBody(index int) []byte {
	size := 64 + index%200
	if index%10 == 0 {
		size = 5000 + index%1000
	}
	unit := fmt.Sprintf("message %d;", index)
	return []byte(strings.Repeat(unit, size/len(unit)+1)[:size])
}

// tagsMatch tells whether a subscription such as "TagA || TagC" or "*" lets message number index through.
func tagsMatch(tags string, index int) bool {
	for _, tag := range strings.Split(tags, "||") {
		if tag = strings.TrimSpace(tag); tag == "*" || tag == sampleTag(index) {
			return true
		}
	}
	return false
}
