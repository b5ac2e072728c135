'use strict';

/** The `--name value` pairs of a command line, as an object; a missing required one is an error. */
exports.parseOptions = args => {
  const values = new Map();
  for (let i = 0; i < args.length; i += 2) {
    if (!args[i].startsWith('--') || i + 1 === args.length) {
      throw new Error(`expected --name value, got ${args[i]}`);
    }
    values.set(args[i].slice(2), args[i + 1]);
  }
  const text = (name, otherwise) => {
    const value = values.has(name) ? values.get(name) : otherwise;
    if (value === undefined) throw new Error(`--${name} is required`);
    return value;
  };
  return { text, number: (name, otherwise) => Number(text(name, otherwise)) };
};
