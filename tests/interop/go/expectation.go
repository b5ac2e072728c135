package main

import (
	"sort"
	"sync"
)

const missingShown = 20

// expectation holds the indexes a consumer still waits for: the first expect from start on that its
// tags let through.
type expectation struct {
	sync.Mutex
	missing, seen        map[int]bool
	expected, deliveries int
	complete             chan struct{}
}

func newExpectation(start, expect int, tags string) *expectation {
	e := &expectation{missing: map[int]bool{}, seen: map[int]bool{}, expected: expect, complete: make(chan struct{})}
	for index := start; len(e.missing) < expect; index++ {
		if tagsMatch(tags, index) {
			e.missing[index] = true
		}
	}
	return e
}

func (e *expectation) received(index int) {
	e.Lock()
	defer e.Unlock()
	e.deliveries++
	e.seen[index] = true
	if e.missing[index] {
		delete(e.missing, index)
		if len(e.missing) == 0 {
			close(e.complete)
		}
	}
}

func (e *expectation) summarise() {
	e.Lock()
	defer e.Unlock()
	missing := []int{}
	for index := range e.missing {
		missing = append(missing, index)
	}
	sort.Ints(missing)
	emit("summary", fields{
		"expected": e.expected, "received": len(e.seen), "deliveries": e.deliveries,
		"missingCount": len(missing), "missing": missing[:min(missingShown, len(missing))],
	})
}
