'use strict';
// The driver's command line: <subcommand> --name value … A new subcommand is one more line in the table.

const { parseOptions } = require('./options');

const commands = {
  produce: require('./produce'),
  consume: require('./consume'),
};

async function main([ subcommand, ...rest ]) {
  if (!Object.hasOwn(commands, subcommand)) {
    console.error(`expected a subcommand, one of ${Object.keys(commands).join(', ')}`);
    return 2;
  }
  return await commands[subcommand](parseOptions(rest));
}

// The client keeps timers that outlive it, so the exit has to be said.
main(process.argv.slice(2)).then(code => process.exit(code), error => {
  console.error(error);
  process.exit(1);
});
