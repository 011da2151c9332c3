# SPDX-License-Identifier: Apache-2.0
"""Writes token_cases.txt and the two public keys beside it. The keys that sign are made anew and
thrown away, so a new case needs a run of this: python3 make_token_cases.py"""
import base64
import hashlib
import hmac
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1_800_000_000  # the test's clock


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True,
                          check=True).stdout


def raw_signature(der):
    """ECDSA-Sig-Value to r || s."""
    out, at = b"", 2
    for _ in range(2):
        length = der[at + 1]
        out += der[at + 2:at + 2 + length].lstrip(b"\0").rjust(32, b"\0")
        at += 2 + length
    return out


def signed(header, claims, sign):
    text = f"{b64(json.dumps(header).encode())}." + b64(
        claims if isinstance(claims, bytes) else json.dumps(claims).encode())
    return f"{text}.{b64(sign(text.encode()))}"


class Keys:
    """Signers with keys of a temporary folder; the public halves are written beside this."""

    def __init__(self, folder):
        self.rsa, self.other, self.ec = (f"{folder}/{name}" for name in ("rsa", "other", "ec"))
        for path in (self.rsa, self.other):
            openssl("genrsa", "-out", path, "2048")
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.ec)
        self.public = openssl("rsa", "-in", self.rsa, "-pubout")
        (HERE / "rsa.pub.pem").write_bytes(self.public)
        (HERE / "ec.pub.pem").write_bytes(openssl("ec", "-in", self.ec, "-pubout"))

    def rs(self, key=None, digest="-sha256"):
        return lambda data: openssl("dgst", digest, "-sign", key or self.rsa, data=data)

    def es(self, data):
        return raw_signature(openssl("dgst", "-sha256", "-sign", self.ec, data=data))


def hs(key):
    return lambda data: hmac.new(key, data, hashlib.sha256).digest()


HEAD = {"alg": "RS256", "typ": "JWT", "kid": "rsa-1"}
GOOD = {"iss": "https://issuer", "aud": "trainyard", "sub": "user-1", "role": "member",
        "tenant_id": "tenant_1", "exp": NOW + 600}


def claims(**change):
    made = {**GOOD, **change}
    return {key: value for key, value in made.items() if value is not None}


def good_cases(keys):
    return [
        ("ok", "RS256", signed(HEAD, GOOD, keys.rs())),
        ("ok", "ES256", signed({"alg": "ES256", "kid": "ec-1"}, GOOD, keys.es)),
        ("ok", "aud list", signed(HEAD, claims(aud=["x", "trainyard"]), keys.rs())),
        ("ok", "just expired, within the leeway", signed(HEAD, claims(exp=NOW - 29), keys.rs())),
        ("ok", "nbf and iat within the leeway",
         signed(HEAD, claims(nbf=NOW + 29, iat=NOW + 29), keys.rs())),
        ("ok", "fractional exp", signed(HEAD, claims(exp=NOW + 0.5), keys.rs())),
        ("ok", "operator", signed(HEAD, claims(role="operator", tenant_id=None), keys.rs())),
    ]


def key_cases(keys):
    token = signed(HEAD, GOOD, keys.rs())
    return [
        ("no", "alg none", signed({"alg": "none", "kid": "rsa-1"}, GOOD, lambda _: b"x")),
        ("no", "alg none, no signature",
         signed({"alg": "none", "kid": "rsa-1"}, GOOD, lambda _: b"")),
        ("no", "alg None, no kid", signed({"alg": "None"}, GOOD, lambda _: b"x")),
        ("no", "HS256 with the RSA public key",
         signed({"alg": "HS256", "kid": "rsa-1"}, GOOD, hs(keys.public))),
        ("no", "HS256 with the RSA public key, stripped",
         signed({"alg": "HS256", "kid": "rsa-1"}, GOOD, hs(keys.public.strip()))),
        ("no", "HS256 named RS256", signed(HEAD, GOOD, hs(keys.public))),
        ("no", "HS256 with an empty key", signed({"alg": "HS256", "kid": "rsa-1"}, GOOD, hs(b""))),
        ("no", "RS512 of the same key",
         signed({"alg": "RS512", "kid": "rsa-1"}, GOOD, keys.rs(digest="-sha512"))),
        ("no", "ES256 under the RSA key's kid",
         signed({"alg": "ES256", "kid": "rsa-1"}, GOOD, keys.es)),
        ("no", "RS256 under the EC key's kid",
         signed({"alg": "RS256", "kid": "ec-1"}, GOOD, keys.rs())),
        ("no", "alg missing", signed({"kid": "rsa-1"}, GOOD, keys.rs())),
        ("no", "alg in another case", signed({"alg": "rs256", "kid": "rsa-1"}, GOOD, keys.rs())),
        ("no", "alg twice",
         b64(b'{"alg":"none","kid":"rsa-1","alg":"RS256"}') + "." + ".".join(token.split(".")[1:])),
        ("no", "another key", signed(HEAD, GOOD, keys.rs(keys.other))),
        ("no", "unknown kid", signed({**HEAD, "kid": "rsa-2"}, GOOD, keys.rs())),
        ("no", "kid as a path", signed({**HEAD, "kid": "../../dev/null"}, GOOD, keys.rs())),
        ("no", "no kid", signed({"alg": "RS256"}, GOOD, keys.rs())),
        ("no", "own jwk", signed({"alg": "RS256", "jwk": {"kty": "RSA"}}, GOOD,
                                 keys.rs(keys.other))),
        ("no", "own jku",
         signed({"alg": "RS256", "kid": "x", "jku": "http://127.0.0.1/k"}, GOOD,
                keys.rs(keys.other))),
        ("no", "crit", signed({**HEAD, "crit": ["exp"]}, GOOD, keys.rs())),
        ("no", "signature cut", token[:-4]),
        ("no", "signature empty", token.rpartition(".")[0] + "."),
        ("no", "no signature", token.rpartition(".")[0]),
        ("no", "four parts", token + ".x"),
        ("no", "padding", token + "="),
        ("no", "payload changed",
         ".".join([token.split(".")[0], b64(json.dumps(claims(role="operator")).encode()),
                   token.split(".")[2]])),
    ]


def claim_cases(keys):
    return [
        ("no", "expired", signed(HEAD, claims(exp=NOW - 31), keys.rs())),
        ("no", "exp missing", signed(HEAD, claims(exp=None), keys.rs())),
        ("no", "exp as text", signed(HEAD, claims(exp=str(NOW + 600)), keys.rs())),
        ("no", "exp huge", signed(HEAD, claims(exp=1e30), keys.rs())),
        ("no", "exp negative", signed(HEAD, claims(exp=-1), keys.rs())),
        ("no", "not yet valid", signed(HEAD, claims(nbf=NOW + 31), keys.rs())),
        ("no", "issued in the future", signed(HEAD, claims(iat=NOW + 31), keys.rs())),
        ("no", "iss missing", signed(HEAD, claims(iss=None), keys.rs())),
        ("no", "iss another", signed(HEAD, claims(iss="https://issuer/"), keys.rs())),
        ("no", "iss a list", signed(HEAD, claims(iss=["https://issuer"]), keys.rs())),
        ("no", "aud missing", signed(HEAD, claims(aud=None), keys.rs())),
        ("no", "aud another", signed(HEAD, claims(aud="trainyard2"), keys.rs())),
        ("no", "aud empty list", signed(HEAD, claims(aud=[]), keys.rs())),
        ("no", "sub missing", signed(HEAD, claims(sub=None), keys.rs())),
        ("no", "role missing", signed(HEAD, claims(role=None), keys.rs())),
        ("no", "role agent", signed(HEAD, claims(role="agent"), keys.rs())),
        ("no", "tenant missing", signed(HEAD, claims(tenant_id=None), keys.rs())),
        ("no", "tenant not an id", signed(HEAD, claims(tenant_id="a/b"), keys.rs())),
        ("no", "operator of a tenant", signed(HEAD, claims(role="operator"), keys.rs())),
        ("no", "payload a list", signed(HEAD, b"[1]", keys.rs())),
        ("no", "payload no JSON", signed(HEAD, b"x", keys.rs())),
        ("no", "claim twice",
         signed(HEAD, json.dumps(GOOD)[:-1].encode() + b',"role":"owner"}', keys.rs())),
        ("no", "text", "x"),
        ("no", "dots", ".."),
    ]


def main():
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(folder)
        cases = good_cases(keys) + key_cases(keys) + claim_cases(keys)
    with open(HERE / "token_cases.txt", "w", encoding="ascii") as file:
        file.write("# verdict | what | token; made by make_token_cases.py\n")
        for verdict, what, text in cases:
            file.write(f"{verdict}|{what}|{text}\n")


main()
