// A person who verifies somebody with matrix-js-sdk: what to do comes as JSON lines on stdin, what happens goes to stdout.
//
//   -> {"do": NAME, ...}     <- {"did": NAME, "result": ...} or {"did": NAME, "error": "..."}
//   <- {"sas": {...}}        both sides have something to compare
//   <- {"verified": bool}    how it ended for this side
//
// An incoming request is accepted at once. Usage: verify.mjs HOMESERVER USER DEVICE TOKEN PASSWORD
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import { VerificationPhase } from "matrix-js-sdk/lib/crypto-api/index.js";
import { logger } from "matrix-js-sdk/lib/logger.js";

logger.disableAll();
for (const level of ["log", "debug", "info", "warn"]) console[level] = () => {};

const [, , baseUrl, userId, deviceId, accessToken, password] = process.argv;
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const client = sdk.createClient({ baseUrl, userId, deviceId, accessToken, verificationMethods: ["m.sas.v1"] });
await client.initRustCrypto({ useIndexedDB: false });
await client.startClient({ initialSyncLimit: 20 });
await new Promise((done) => client.on(sdk.ClientEvent.Sync, (state) => state === "PREPARED" && done()));
const crypto = client.getCrypto();

let shown = null;
async function follow(request) {
  let verifying = false;
  const look = async () => {
    if (request.phase === VerificationPhase.Cancelled) say({ verified: false, code: request.cancellationCode });
    const mine = request.initiatedByMe && request.phase === VerificationPhase.Ready;
    if (verifying || !(mine || request.verifier)) return;
    verifying = true;
    const verifier = request.verifier ?? (await request.startVerification("m.sas.v1"));
    verifier.on("show_sas", (callbacks) => {
      shown = callbacks;
      say({ sas: callbacks.sas });
    });
    verifier.verify().then(
      () => say({ verified: true }),
      () => {},
    );
  };
  request.on("change", look);
  await look();
}
client.on("crypto.verificationRequestReceived", async (request) => {
  await follow(request);
  await request.accept();
});

const deeds = {
  cross_sign: () =>
    crypto.bootstrapCrossSigning({
      setupNewCrossSigning: true,
      authUploadDeviceSigningKeys: (upload) =>
        upload({ type: "m.login.password", identifier: { type: "m.id.user", user: userId }, password }),
    }),
  create_room: async ({ invite }) => {
    const encryption = { type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } };
    return (await client.createRoom({ preset: "private_chat", invite: [invite], initial_state: [encryption] })).room_id;
  },
  knows: async ({ user }) => {
    await crypto.getUserDeviceInfo([user], true); // asks the homeserver
    return (await crypto.userHasCrossSigningKeys(user, true)) ?? null;
  },
  in_room: async ({ room }) => client.getRoom(room)?.getJoinedMembers().map((member) => member.userId) ?? [],
  verify_device: async ({ user, device }) => {
    await follow(await crypto.requestDeviceVerification(user, device));
  },
  verify_in_room: async ({ user, room }) => {
    await follow(await crypto.requestVerificationDM(user, room));
  },
  confirm: () => shown.confirm(),
  mismatch: () => shown.mismatch(),
  trusts: async ({ user }) => (await crypto.getUserVerificationStatus(user)).isCrossSigningVerified(),
};

say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...wish } = JSON.parse(line);
  Promise.resolve()
    .then(() => deeds[name](wish))
    .then(
      (result) => say({ did: name, result: result ?? null }),
      (error) => say({ did: name, error: String(error?.stack ?? error) }),
    );
}
client.stopClient();
process.exit(0);
