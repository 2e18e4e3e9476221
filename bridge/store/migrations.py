"""The tables of the ledger, version by version: SQL and nothing else.

Above it: `database`, which runs them. Below it: nothing. It opens no file and knows no value of the bridge.

Version N is what the first N steps make. A step that has been released is never changed: what follows is a new step.
The SQL keeps to what SQLite 3.31 knows (no STRICT, no RETURNING), since Python 3.11 is in use on systems as old.
Texts are stored ASCII-escaped (`codec`); `position` columns keep the order of storing, which no clock can disturb.
An index costs each commit a page to write, and people wait for commits: there is none that no statement needs, and the
numbers of a request are kept unique by the counters of its session and room, which only go up.
"""

Step = tuple[str, ...]

_FIRST: Step = (
    # `last_sequence` and `last_request` outlive the rows they counted: neither number is ever given twice.
    """
    CREATE TABLE sessions (
      position INTEGER PRIMARY KEY,
      session_id TEXT NOT NULL UNIQUE,
      agent TEXT NOT NULL,
      last_sequence INTEGER NOT NULL DEFAULT 0,
      last_request INTEGER NOT NULL DEFAULT 0,
      ended INTEGER NOT NULL DEFAULT 0 CHECK (ended IN (0, 1))
    )
    """,
    "CREATE INDEX sessions_open ON sessions (position) WHERE ended = 0",
    """
    CREATE TABLE history (
      position INTEGER PRIMARY KEY,
      session_id TEXT NOT NULL REFERENCES sessions (session_id),
      sequence INTEGER NOT NULL CHECK (sequence > 0),
      timestamp TEXT NOT NULL,
      type TEXT NOT NULL,
      fields TEXT NOT NULL,
      UNIQUE (session_id, sequence)
    )
    """,
    "CREATE TABLE rooms (room TEXT PRIMARY KEY, next_number INTEGER NOT NULL CHECK (next_number > 0)) WITHOUT ROWID",
    # Small and often written; what is large and seldom written lies in `details`.
    """
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
    )
    """,
    "CREATE INDEX requests_open ON requests (position) WHERE open = 1",
    """
    CREATE TABLE details (
      position INTEGER PRIMARY KEY REFERENCES requests (position),
      body TEXT NOT NULL,
      raw BLOB NOT NULL
    )
    """,
    # A table of its own, so that a second ending meets a UNIQUE whatever the statement says (rule 19).
    """
    CREATE TABLE endings (
      position INTEGER PRIMARY KEY,
      request_id TEXT NOT NULL UNIQUE REFERENCES requests (request_id),
      room TEXT NOT NULL,
      ending TEXT NOT NULL,
      delivered INTEGER NOT NULL CHECK (delivered IN (0, 1))
    )
    """,
    "CREATE INDEX endings_of_room ON endings (room, position)",
    "CREATE TABLE unseen (room TEXT NOT NULL, person TEXT NOT NULL, PRIMARY KEY (room, person)) WITHOUT ROWID",
    # A row stays when its event has left, without its content: no transaction id is ever used twice (rule 19).
    """
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
    )
    """,
    "CREATE INDEX outgoing_waiting ON outgoing (position) WHERE waiting = 1",
    "CREATE TABLE taken (position INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE)",
    "CREATE TABLE sync (one INTEGER PRIMARY KEY CHECK (one = 1), token TEXT NOT NULL)",
)

_SECOND: Step = (
    # Encrypted events whose key may still come, as they came: the sync token has moved past them (rule 19).
    """
    CREATE TABLE locked (
      position INTEGER PRIMARY KEY,
      event_id TEXT NOT NULL UNIQUE,
      room TEXT NOT NULL,
      sender TEXT NOT NULL,
      raw TEXT NOT NULL
    )
    """,
    "CREATE TABLE pins (person TEXT PRIMARY KEY, master TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE encrypted (room TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE moved (position INTEGER PRIMARY KEY, old TEXT NOT NULL, new TEXT NOT NULL)",
)

STEPS: tuple[Step, ...] = (_FIRST, _SECOND)
