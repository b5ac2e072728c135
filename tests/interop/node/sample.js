'use strict';
// Message number i, made from i alone, so that any client can check what any other sent.
// The README's table is the contract; the Java and Go drivers build the same bytes.

const TAGS = [ 'TagA', 'TagB', 'TagC' ];

exports.key = index => `key-${index}`;
exports.tag = index => TAGS[index % TAGS.length];
exports.text = index => `Grüße 消息 🚀 №${index}`;

/** Every tenth body is long enough (over 4 KiB) that clients compress it. */
exports.body = index => {
  const size = index % 10 === 0 ? 5000 + index % 1000 : 64 + index % 200;
  return Buffer.alloc(size, `message ${index};`);
};

/** Whether a subscription such as "TagA || TagC" or "*" lets message number index through. */
exports.tagsMatch = (tags, index) =>
  tags.split('||').map(tag => tag.trim()).some(tag => tag === '*' || tag === exports.tag(index));
