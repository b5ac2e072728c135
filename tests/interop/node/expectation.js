'use strict';

const { emit } = require('./jsonlines');
const { tagsMatch } = require('./sample');

const MISSING_SHOWN = 20;

/** The indexes a consumer still waits for: the first `expect` from `start` on that its tags let through. */
module.exports = class Expectation {
  constructor(start, expect, tags) {
    this.expected = expect;
    this.deliveries = 0;
    this.seen = new Set();
    this.missing = new Set();
    for (let index = start; this.missing.size < expect; index++) {
      if (tagsMatch(tags, index)) this.missing.add(index);
    }
    this.complete = new Promise(resolve => { this.markComplete = resolve; });
  }

  received(index) {
    this.deliveries++;
    this.seen.add(index);
    this.missing.delete(index);
    if (this.missing.size === 0) this.markComplete(true);
  }

  summarise() {
    emit('summary', {
      expected: this.expected, received: this.seen.size, deliveries: this.deliveries,
      missingCount: this.missing.size, missing: [ ...this.missing ].slice(0, MISSING_SHOWN),
    });
  }
};
