'use strict';

// Everything the client has to say goes to standard error; its info level tells of every pull.
const toStandardError = (...args) => console.error(...args);

/** The options that producers and consumers share. */
exports.clientOptions = options => ({
  nameSrv: options.text('namesrv'),
  // Demanded by the client, used only to look up name servers over HTTP.
  httpclient: { request() { throw new Error('no HTTP lookup is expected'); } },
  logger: { debug() {}, info() {}, warn: toStandardError, error: toStandardError },
});

/** A promise that is kept when the process is asked to stop, so that clients can be closed properly. */
exports.stopSignal = () => new Promise(resolve => {
  process.once('SIGTERM', resolve);
  process.once('SIGINT', resolve);
});
