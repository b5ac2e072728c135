'use strict';

const fs = require('fs');

/** Write one JSON object as one line, at once: process.exit() would drop what a stream still buffers. */
exports.emit = (event, fields) => {
  fs.writeSync(process.stdout.fd, JSON.stringify({ event, ...fields }) + '\n');
};
