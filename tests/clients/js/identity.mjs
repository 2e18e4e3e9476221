// One look at, or one act on, an account's cross-signing identity by matrix-js-sdk, on a device of its own.
//
//   identity.mjs make HOMESERVER USER DEVICE TOKEN PASSWORD [PASSPHRASE]   an identity, and secret storage that holds it
//   identity.mjs look HOMESERVER USER DEVICE TOKEN OTHER_DEVICE            what js-sdk thinks of another device of the user
//
// Prints one line of JSON. The client's own log goes nowhere, its warnings to stderr.
import * as sdk from "matrix-js-sdk";
import { logger } from "matrix-js-sdk/lib/logger.js";

logger.disableAll();
for (const level of ["log", "debug", "info"]) console[level] = () => {};

const [, , deed, baseUrl, userId, deviceId, accessToken, ...rest] = process.argv;

let storageKey = null; // [id, bytes], as the callbacks hand it over
const client = sdk.createClient({
  baseUrl,
  userId,
  deviceId,
  accessToken,
  cryptoCallbacks: {
    getSecretStorageKey: async () => storageKey,
    cacheSecretStorageKey: (id, _info, key) => {
      storageKey = [id, key];
    },
  },
});
await client.initRustCrypto({ useIndexedDB: false });
await client.startClient({ initialSyncLimit: 1 });
await new Promise((done) => client.on(sdk.ClientEvent.Sync, (state) => state === "PREPARED" && done()));
const crypto = client.getCrypto();

async function make(password, passphrase) {
  await crypto.bootstrapCrossSigning({
    setupNewCrossSigning: true,
    authUploadDeviceSigningKeys: (upload) =>
      upload({ type: "m.login.password", identifier: { type: "m.id.user", user: userId }, password }),
  });
  const made = await crypto.createRecoveryKeyFromPassphrase(passphrase);
  await crypto.bootstrapSecretStorage({ setupNewSecretStorage: true, createSecretStorageKey: async () => made });
  const status = await crypto.getCrossSigningStatus();
  return { recovery_key: made.encodedPrivateKey, stored: status.privateKeysInSecretStorage };
}

async function look(other) {
  await crypto.userHasCrossSigningKeys(); // of oneself: asks the homeserver for all keys, every time
  const device = await crypto.getDeviceVerificationStatus(userId, other);
  return { signed_by_owner: device?.signedByOwner ?? null };
}

const result = await { make, look }[deed](...rest);
await new Promise((done) => process.stdout.write(JSON.stringify(result) + "\n", done));
client.stopClient();
process.exit(0);
