"""The floors: the same hops with aiohttp and nothing between them, and the same with the bytes synced to the disk first.

    python -m tests.bench.floor CONTROL_SOCKET HOMESERVER AGENT BODY_FILE DISK_FILE

It starts the same agent, reads its requests from the same kind of pipe, sends the bytes of BODY_FILE (a prompt as the
bridge sent it) to the same homeserver with the same HTTP client, and follows the same sync. Above it: the bench. Below it:
asyncio and aiohttp. A request with an even number only hops; one with an odd number is written to DISK_FILE and synced
before it goes on. DISK_FILE has its size already and only its data is synced, which is the quickest that a disk can do.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import aiohttp

from tests.bench.homeserver import API, ROOM, user_of

TOKEN = "floor"  # the account's name on the stub
DISK_BYTES = 4_194_304  # as large as SQLite lets its write-ahead log become


class Disk:
    """A file that is written round and round."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(DISK_BYTES))
        self.file = os.open(path, os.O_RDWR)
        os.fsync(self.file)
        self.offset = 0

    def keep(self, data: bytes) -> None:
        if self.offset + len(data) > DISK_BYTES:
            self.offset = 0
        os.pwrite(self.file, data, self.offset)
        os.fdatasync(self.file)
        self.offset += len(data)


class Floor(asyncio.SubprocessProtocol):
    def __init__(self, session: aiohttp.ClientSession, body: bytes, disk: Disk) -> None:
        self.session = session
        self.body = body
        self.disk = disk
        self.buffer = b""
        self.tasks: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        process = cast("asyncio.SubprocessTransport", transport)
        self.stdin = cast("asyncio.WriteTransport", process.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - asyncio's signature
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            task = asyncio.get_running_loop().create_task(self.ask(line))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def process_exited(self) -> None:
        self.ended.set()

    async def ask(self, line: bytes) -> None:
        if int(line.split(b'"id":', 1)[1].split(b",", 1)[0]) % 2:
            self.disk.keep(line + self.body)
        self.sent += 1
        path = f"{API}rooms/{ROOM}/send/m.room.message/{self.sent}%2Fprompt"
        async with self.session.put(path, data=self.body) as response:
            json.loads(await response.read())

    async def follow(self) -> None:
        since = "0"
        while True:
            async with self.session.get(f"{API}sync?since={since}&timeout=30000") as response:
                raw = await response.read()
            said = json.loads(raw)
            since = said["next_batch"]
            for event in said["rooms"]["join"][ROOM]["timeline"]["events"]:
                if event["sender"] != user_of(TOKEN):
                    self.answer(event, raw)

    def answer(self, event: dict[str, Any], raw: bytes) -> None:
        number = int(event["content"]["body"])
        result = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        line = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n"
        if number % 2:
            self.disk.keep(raw + line)
        self.stdin.write(line)


async def main() -> None:
    control, homeserver, agent, body, disk = sys.argv[1:]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(homeserver, headers=headers) as session:
        floor = Floor(session, Path(body).read_bytes(), Disk(Path(disk)))  # noqa: ASYNC240 - before anything is timed
        loop = asyncio.get_running_loop()
        await loop.subprocess_exec(lambda: floor, sys.executable, agent, control, "floor-agent", stderr=None)
        following = loop.create_task(floor.follow())
        await floor.ended.wait()
        following.cancel()


if __name__ == "__main__":
    asyncio.run(main())
