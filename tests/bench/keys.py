"""The keys that the bench's homeserver keeps for all its accounts, and hands out without a look at any signature.

Above it: homeserver. Below it: nothing. It answers from what it holds, without any wait.
"""

from collections import defaultdict
from typing import Any

ALGORITHM = "signed_curve25519"
USAGES = ("master_key", "self_signing_key", "user_signing_key")

Json = dict[str, Any]


class Keys:
    """Device keys, one-time keys and identities, by user."""

    def __init__(self) -> None:
        self.devices: defaultdict[str, Json] = defaultdict(dict)
        self.one_time_keys: defaultdict[tuple[str, str], Json] = defaultdict(dict)
        self.identities: dict[str, Json] = {}

    def forget(self, user: str) -> None:
        """All devices of a user, and the identity."""
        for device in self.devices.pop(user, {}):
            self.one_time_keys.pop((user, device), None)
        self.identities.pop(user, None)

    def serve(self, user: str, device: str, what: str, body: Json) -> Json:
        """The answer to one call below `/keys/`."""
        match what:
            case "upload":
                return self.upload(user, device, body)
            case "query":
                return self.query(body)
            case "claim":
                return self.claim(body)
            case "device_signing/upload":
                self.identities[user] = {usage: body[usage] for usage in USAGES}
            case "signatures/upload":
                self.sign(body)
            case _:
                raise AssertionError(what)
        return {}

    def upload(self, user: str, device: str, body: Json) -> Json:
        if "device_keys" in body:
            self.devices[user][device] = body["device_keys"]
        self.one_time_keys[user, device] |= body.get("one_time_keys", {})
        return {"one_time_key_counts": self.count(user, device)}

    def count(self, user: str, device: str) -> Json:
        return {ALGORITHM: len(self.one_time_keys.get((user, device), {}))}

    def query(self, body: Json) -> Json:
        users = body["device_keys"]
        answer: Json = {"device_keys": {user: self.devices.get(user, {}) for user in users}}
        for usage in USAGES:
            answer[f"{usage}s"] = {user: self.identities[user][usage] for user in users if user in self.identities}
        return answer

    def claim(self, body: Json) -> Json:
        found: defaultdict[str, Json] = defaultdict(dict)
        for user, devices in body["one_time_keys"].items():
            for device in devices:
                if keys := self.one_time_keys.get((user, device)):
                    name, key = keys.popitem()
                    found[user][device] = {name: key}
        return {"one_time_keys": found}

    def sign(self, body: Json) -> None:
        for user, devices in body.items():
            for device, signed in devices.items():
                self.devices[user][device]["signatures"][user] |= signed["signatures"][user]
