// A person with a matrix-js-sdk client and its crypto: what to do comes as JSON lines on stdin, what happens goes to stdout.
//
//   -> {"id": 1, "do": NAME, ...}    <- {"id": 1, "result": ...} or {"id": 1, "error": "..."}
//   <- {"moved": true}               something in a room is new, was decrypted or was edited: `look` shows it
//
// The first line is `log_in`. The client's own log and warnings go to stderr.
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import { AllDevicesIsolationMode, OnlySignedDevicesIsolationMode } from "matrix-js-sdk/lib/crypto-api/index.js";
import { PollResponseEvent } from "matrix-js-sdk/lib/extensible_events_v1/PollResponseEvent.js";
import { logger } from "matrix-js-sdk/lib/logger.js";

logger.disableAll();
for (const level of ["log", "debug", "info"]) console[level] = () => {};

const SHIELDS = ["none", "grey", "red"]; // EventShieldColour, in its order
const ENCRYPTION = { type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } };

let client;
let password;
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const moved = () => say({ moved: true });

async function logIn({ homeserver, user, device, token, password: secret, encryption = true }) {
  password = secret;
  client = sdk.createClient({ baseUrl: homeserver, userId: user, deviceId: device, accessToken: token });
  if (encryption) await client.initRustCrypto({ useIndexedDB: false });
  client.on(sdk.RoomEvent.Timeline, moved);
  client.on(sdk.MatrixEventEvent.Decrypted, moved);
  client.on(sdk.MatrixEventEvent.Replaced, moved);
  client.on(sdk.RoomStateEvent.Members, moved);
  await client.startClient({ initialSyncLimit: 50, threadSupport: true });
  await new Promise((done) => {
    client.on(sdk.ClientEvent.Sync, (state) => state === "PREPARED" && done());
  });
}

// The identity is made anew and signs this device. A first upload wants no password on Synapse; the client asks all the same.
const crossSign = () =>
  client.getCrypto().bootstrapCrossSigning({
    setupNewCrossSigning: true,
    authUploadDeviceSigningKeys: (upload) =>
      upload({ type: "m.login.password", identifier: { type: "m.id.user", user: client.getUserId() }, password }),
  });

const createRoom = async ({ invite, encryption = true, version }) => {
  const wish = { preset: "private_chat", invite, initial_state: encryption ? [ENCRYPTION] : [] };
  const made = await client.createRoom(version ? { ...wish, room_version: version } : wish);
  return made.room_id;
};

const send = async ({ room, type = "m.room.message", content, thread = null }) =>
  (await client.sendEvent(room, thread, type, content)).event_id;

const vote = async ({ room, poll, answers }) => {
  const { type, content } = PollResponseEvent.from(answers, poll).serialize();
  return (await client.sendEvent(room, type, content)).event_id;
};

async function show(event) {
  const encryption = event.isEncrypted() && (await client.getCrypto().getEncryptionInfoForEvent(event));
  const content = event.getContent(); // of the last edit
  return {
    event: event.getId(),
    sender: event.getSender(),
    type: event.getType(),
    encrypted: event.isEncrypted(),
    unreadable: event.isDecryptionFailure() ? event.decryptionFailureReason : null,
    content,
    text: content.body ?? "",
    edited: Boolean(event.replacingEvent()),
    shield: encryption ? SHIELDS[encryption.shieldColour] : null,
    why: encryption ? encryption.shieldReason : null,
  };
}

// Everything in the room as it is shown now, in threads too: an edited message has its last text.
async function look({ room: id }) {
  const room = client.getRoom(id);
  if (!room) return { members: [], events: [] };
  const threads = room.getThreads().flatMap((thread) => thread.timelineSet.getLiveTimeline().getEvents());
  const unique = new Map([...room.getLiveTimeline().getEvents(), ...threads].map((event) => [event.getId(), event]));
  const shown = [...unique.values()].filter((event) => !event.isState());
  return {
    members: room.getJoinedMembers().map((member) => member.userId),
    events: await Promise.all(shown.map(show)),
  };
}

const isolate = ({ on }) =>
  client
    .getCrypto()
    .setDeviceIsolationMode(on ? new OnlySignedDevicesIsolationMode() : new AllDevicesIsolationMode(false));

const deeds = {
  log_in: logIn,
  cross_sign: crossSign,
  create_room: createRoom,
  isolate,
  look,
  send,
  vote,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...wish } = JSON.parse(line);
  Promise.resolve()
    .then(() => deeds[name](wish))
    .then(
      (result) => say({ id, result: result ?? null }),
      (error) => say({ id, error: String(error?.stack ?? error) }),
    );
}
client?.stopClient();
process.exit(0);
