BEGIN TRANSACTION;
CREATE TABLE details (
      position INTEGER PRIMARY KEY REFERENCES requests (position),
      body TEXT NOT NULL,
      raw BLOB NOT NULL
    );
INSERT INTO "details" VALUES(1,'{"request_id":"acps_0123456789abcdef:1","session_id":"acps_0123456789abcdef","request_seq":1,"agent":"claude","call":101,"tool_call_id":"call_\ud800","room":"!room:ex.org","number":1,"description":{"title":"Run tests \u2705","tool_kind":"execute","subjects":[{"kind":"shell","members":{"command":"pytest -q","argv":["pytest","-q"]},"known":true},{"kind":"teleport","members":{},"known":false}],"preview":[["field","Command","pytest -q"],["text","Diff","-a\n+b\n"]],"notes":["The diff is longer than what was sent."],"essence":{"command":"pytest -q","paths":["/srv/a"],"diffs":["-a\n+b\n"],"url":null}},"options":[{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},{"option_id":"\u00dcn\u00ef / 1 ","name":"","kind":null,"label":"\u2026","line":"\u2026 [id]","card_id":"opt_2","meaning":"choose","scope":null,"label_cut":true}],"asked_at":1794047398114,"expires_at":1794047399114,"revision":1,"placed":false,"whole":true,"style":"brief","mentions":["@alice:ex.org"],"nonce":"","strict":false}',X'7B22746F6F6C43616C6C223A20225C7564666666227D');
INSERT INTO "details" VALUES(2,'{"request_id":"acps_0123456789abcdef:2","session_id":"acps_0123456789abcdef","request_seq":2,"agent":"claude","call":102,"tool_call_id":"call_\ud800","room":"!room:ex.org","number":2,"description":{"title":"Run tests \u2705","tool_kind":"execute","subjects":[{"kind":"shell","members":{"command":"pytest -q","argv":["pytest","-q"]},"known":true},{"kind":"teleport","members":{},"known":false}],"preview":[["field","Command","pytest -q"],["text","Diff","-a\n+b\n"]],"notes":["The diff is longer than what was sent."],"essence":{"command":"pytest -q","paths":["/srv/a"],"diffs":["-a\n+b\n"],"url":null}},"options":[{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},{"option_id":"\u00dcn\u00ef / 1 ","name":"","kind":null,"label":"\u2026","line":"\u2026 [id]","card_id":"opt_2","meaning":"choose","scope":null,"label_cut":true}],"asked_at":1794047398114,"expires_at":1794047399114,"revision":1,"placed":false,"whole":true,"style":"brief","mentions":["@alice:ex.org"],"nonce":"","strict":false}',X'7B22746F6F6C43616C6C223A20225C7564666666227D');
INSERT INTO "details" VALUES(3,'{"request_id":"acps_0123456789abcdef:3","session_id":"acps_0123456789abcdef","request_seq":3,"agent":"claude","call":103,"tool_call_id":"call_\ud800","room":"!room:ex.org","number":3,"description":{"title":"Run tests \u2705","tool_kind":"execute","subjects":[{"kind":"shell","members":{"command":"pytest -q","argv":["pytest","-q"]},"known":true},{"kind":"teleport","members":{},"known":false}],"preview":[["field","Command","pytest -q"],["text","Diff","-a\n+b\n"]],"notes":["The diff is longer than what was sent."],"essence":{"command":"pytest -q","paths":["/srv/a"],"diffs":["-a\n+b\n"],"url":null}},"options":[{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},{"option_id":"\u00dcn\u00ef / 1 ","name":"","kind":null,"label":"\u2026","line":"\u2026 [id]","card_id":"opt_2","meaning":"choose","scope":null,"label_cut":true}],"asked_at":1794047398114,"expires_at":1794047399114,"revision":1,"placed":false,"whole":true,"style":"brief","mentions":["@alice:ex.org"],"nonce":"","strict":false}',X'7B22746F6F6C43616C6C223A20225C7564666666227D');
INSERT INTO "details" VALUES(4,'{"request_id":"acps_0123456789abcdef:4","session_id":"acps_0123456789abcdef","request_seq":4,"agent":"claude","call":104,"tool_call_id":"call_\ud800","room":"!room:ex.org","number":4,"description":{"title":"Run tests \u2705","tool_kind":"execute","subjects":[{"kind":"shell","members":{"command":"pytest -q","argv":["pytest","-q"]},"known":true},{"kind":"teleport","members":{},"known":false}],"preview":[["field","Command","pytest -q"],["text","Diff","-a\n+b\n"]],"notes":["The diff is longer than what was sent."],"essence":{"command":"pytest -q","paths":["/srv/a"],"diffs":["-a\n+b\n"],"url":null}},"options":[{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},{"option_id":"\u00dcn\u00ef / 1 ","name":"","kind":null,"label":"\u2026","line":"\u2026 [id]","card_id":"opt_2","meaning":"choose","scope":null,"label_cut":true}],"asked_at":1794047398114,"expires_at":1794047399114,"revision":1,"placed":false,"whole":true,"style":"brief","mentions":["@alice:ex.org"],"nonce":"n0nce","strict":true}',X'7B22746F6F6C43616C6C223A20225C7564666666227D');
CREATE TABLE encrypted (room TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "encrypted" VALUES('!room:ex.org');
CREATE TABLE endings (
      position INTEGER PRIMARY KEY,
      request_id TEXT NOT NULL UNIQUE REFERENCES requests (request_id),
      room TEXT NOT NULL,
      ending TEXT NOT NULL,
      delivered INTEGER NOT NULL CHECK (delivered IN (0, 1))
    );
INSERT INTO "endings" VALUES(1,'acps_0123456789abcdef:3','!room:ex.org','answered',1);
CREATE TABLE history (
      position INTEGER PRIMARY KEY,
      session_id TEXT NOT NULL REFERENCES sessions (session_id),
      sequence INTEGER NOT NULL CHECK (sequence > 0),
      timestamp TEXT NOT NULL,
      type TEXT NOT NULL,
      fields TEXT NOT NULL,
      UNIQUE (session_id, sequence)
    );
INSERT INTO "history" VALUES(1,'acps_0123456789abcdef',1,'2026-11-07T10:29:58.114Z','session_started','{"agent":"claude"}');
INSERT INTO "history" VALUES(2,'acps_fedcba9876543210',1,'2026-11-07T10:29:58.114Z','session_started','{"agent":"claude"}');
INSERT INTO "history" VALUES(3,'acps_0123456789abcdef',2,'2026-11-07T10:29:58.114Z','permission_request','{"request_id":"acps_0123456789abcdef:1","agent":"claude","room_id":"!room:ex.org","toolCall":{"toolCallId":"call_1","rawInput":{"big":1180591620717411303424,"odd":"\udfff","half":0.1}},"options":[{"optionId":"a\udfff","name":"Allow once","kind":"allow_once"}],"_meta":{"trace":null}}');
INSERT INTO "history" VALUES(4,'acps_0123456789abcdef',3,'2026-11-07T10:29:58.114Z','permission_request','{"request_id":"acps_0123456789abcdef:2","agent":"claude","room_id":"!room:ex.org","toolCall":{"toolCallId":"call_1","rawInput":{"big":1180591620717411303424,"odd":"\udfff","half":0.1}},"options":[{"optionId":"a\udfff","name":"Allow once","kind":"allow_once"}],"_meta":{"trace":null}}');
INSERT INTO "history" VALUES(5,'acps_0123456789abcdef',4,'2026-11-07T10:29:58.114Z','permission_request','{"request_id":"acps_0123456789abcdef:3","agent":"claude","room_id":"!room:ex.org","toolCall":{"toolCallId":"call_1","rawInput":{"big":1180591620717411303424,"odd":"\udfff","half":0.1}},"options":[{"optionId":"a\udfff","name":"Allow once","kind":"allow_once"}],"_meta":{"trace":null}}');
INSERT INTO "history" VALUES(6,'acps_0123456789abcdef',5,'2026-11-07T10:29:58.114Z','permission_response','{"request_id":"acps_0123456789abcdef:2","status":"accepted","outcome":{"outcome":"selected","optionId":"a\udfff"},"by":"@alice:ex.org","via":"reaction","event_id":"$answer","waited_ms":1500}');
INSERT INTO "history" VALUES(7,'acps_0123456789abcdef',6,'2026-11-07T10:29:58.114Z','permission_response','{"request_id":"acps_0123456789abcdef:3","status":"accepted","outcome":{"outcome":"selected","optionId":"a\udfff"},"by":"@alice:ex.org","via":"reaction","event_id":"$answer","waited_ms":1500}');
INSERT INTO "history" VALUES(8,'acps_0123456789abcdef',7,'2026-11-07T10:29:58.114Z','permission_ended','{"request_id":"acps_0123456789abcdef:3","ending":"answered","delivered":true}');
INSERT INTO "history" VALUES(9,'acps_0123456789abcdef',8,'2026-11-07T10:29:58.114Z','permission_request','{"request_id":"acps_0123456789abcdef:4","agent":"claude","room_id":"!room:ex.org","toolCall":{"toolCallId":"call_1","rawInput":{"big":1180591620717411303424,"odd":"\udfff","half":0.1}},"options":[{"optionId":"a\udfff","name":"Allow once","kind":"allow_once"}],"_meta":{"trace":null}}');
CREATE TABLE locked (
      position INTEGER PRIMARY KEY,
      event_id TEXT NOT NULL UNIQUE,
      room TEXT NOT NULL,
      sender TEXT NOT NULL,
      raw TEXT NOT NULL
    );
INSERT INTO "locked" VALUES(1,'$l1','!room:ex.org','@alice:ex.org','{\"content\":\"odd \udfff\"}');
CREATE TABLE moved (position INTEGER PRIMARY KEY, old TEXT NOT NULL, new TEXT NOT NULL);
INSERT INTO "moved" VALUES(1,'!room:ex.org','!new');
CREATE TABLE outgoing (
      position INTEGER PRIMARY KEY,
      transaction_id TEXT NOT NULL UNIQUE,
      room TEXT NOT NULL,
      event_type TEXT NOT NULL,
      content TEXT,
      priority INTEGER NOT NULL,
      request_id TEXT,
      event_id TEXT,
      waiting INTEGER NOT NULL DEFAULT 1 CHECK (waiting IN (0, 1))
    );
INSERT INTO "outgoing" VALUES(1,'t1','!room:ex.org','m.room.message','{"body":"odd \udfff","m.mentions":{"user_ids":["@alice:ex.org"]}}',0,'acps_0123456789abcdef:1',NULL,1);
CREATE TABLE pins (person TEXT PRIMARY KEY, master TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "pins" VALUES('@alice:ex.org','b64+/master');
CREATE TABLE requests (
      position INTEGER PRIMARY KEY,
      request_id TEXT NOT NULL UNIQUE,
      session_id TEXT NOT NULL REFERENCES sessions (session_id),
      request_seq INTEGER NOT NULL CHECK (request_seq > 0),
      room TEXT NOT NULL REFERENCES rooms (room),
      number INTEGER NOT NULL CHECK (number >= 0),
      revision INTEGER NOT NULL,
      event_id TEXT,
      decision TEXT,
      open INTEGER NOT NULL DEFAULT 1 CHECK (open IN (0, 1))
    );
INSERT INTO "requests" VALUES(1,'acps_0123456789abcdef:1','acps_0123456789abcdef',1,'!room:ex.org',1,1,NULL,NULL,1);
INSERT INTO "requests" VALUES(2,'acps_0123456789abcdef:2','acps_0123456789abcdef',2,'!room:ex.org',2,1,NULL,'{"ending":"answered","outcome":{"outcome":"selected","optionId":"a\udfff"},"option":{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},"by":"@alice:ex.org","via":"reaction","event_id":"$answer","at":1794047398114}',1);
INSERT INTO "requests" VALUES(3,'acps_0123456789abcdef:3','acps_0123456789abcdef',3,'!room:ex.org',3,1,NULL,'{"ending":"answered","outcome":{"outcome":"selected","optionId":"a\udfff"},"option":{"option_id":"a\udfff","name":"Allow once","kind":"allow_once","label":"Allow once","line":"Allow once","card_id":"opt_1","meaning":"approve","scope":"once","label_cut":false},"by":"@alice:ex.org","via":"reaction","event_id":"$answer","at":1794047398114}',0);
INSERT INTO "requests" VALUES(4,'acps_0123456789abcdef:4','acps_0123456789abcdef',4,'!room:ex.org',4,1,NULL,NULL,1);
CREATE TABLE rooms (room TEXT PRIMARY KEY, next_number INTEGER NOT NULL CHECK (next_number > 0)) WITHOUT ROWID;
INSERT INTO "rooms" VALUES('!room:ex.org',5);
CREATE TABLE sessions (
      position INTEGER PRIMARY KEY,
      session_id TEXT NOT NULL UNIQUE,
      agent TEXT NOT NULL,
      last_sequence INTEGER NOT NULL DEFAULT 0,
      last_request INTEGER NOT NULL DEFAULT 0,
      ended INTEGER NOT NULL DEFAULT 0 CHECK (ended IN (0, 1))
    );
INSERT INTO "sessions" VALUES(1,'acps_0123456789abcdef','claude',8,4,0);
INSERT INTO "sessions" VALUES(2,'acps_fedcba9876543210','claude',1,0,0);
CREATE TABLE sync (one INTEGER PRIMARY KEY CHECK (one = 1), token TEXT NOT NULL);
CREATE TABLE taken (position INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE);
CREATE TABLE unseen (room TEXT NOT NULL, person TEXT NOT NULL, PRIMARY KEY (room, person)) WITHOUT ROWID;
CREATE INDEX sessions_open ON sessions (position) WHERE ended = 0;
CREATE INDEX requests_open ON requests (position) WHERE open = 1;
CREATE INDEX endings_of_room ON endings (room, position);
CREATE INDEX outgoing_waiting ON outgoing (position) WHERE waiting = 1;
PRAGMA user_version = 2;
COMMIT;
