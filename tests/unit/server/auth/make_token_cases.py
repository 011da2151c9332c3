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
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


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


def main():
    with tempfile.TemporaryDirectory() as folder:
        rsa, other, ec = (f"{folder}/{name}" for name in ("rsa", "other", "ec"))
        for path in (rsa, other):
            openssl("genrsa", "-out", path, "2048")
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", ec)
        public = openssl("rsa", "-in", rsa, "-pubout")
        (HERE / "rsa.pub.pem").write_bytes(public)
        (HERE / "ec.pub.pem").write_bytes(openssl("ec", "-in", ec, "-pubout"))

        def rs(key=rsa, digest="-sha256"):
            return lambda data: openssl("dgst", digest, "-sign", key, data=data)

        def es(data):
            return raw_signature(openssl("dgst", "-sha256", "-sign", ec, data=data))

        def hs(key):
            return lambda data: hmac.new(key, data, hashlib.sha256).digest()

        head = {"alg": "RS256", "typ": "JWT", "kid": "rsa-1"}
        good = {"iss": "https://issuer", "aud": "trainyard", "sub": "user-1", "role": "member",
                "tenant_id": "tenant_1", "exp": NOW + 600}

        def claims(**change):
            made = {**good, **change}
            return {key: value for key, value in made.items() if value is not None}

        token = signed(head, good, rs())
        cases = [
            ("ok", "RS256", token),
            ("ok", "ES256", signed({"alg": "ES256", "kid": "ec-1"}, good, es)),
            ("ok", "aud list", signed(head, claims(aud=["x", "trainyard"]), rs())),
            ("ok", "just expired, within the leeway", signed(head, claims(exp=NOW - 29), rs())),
            ("ok", "nbf and iat within the leeway",
             signed(head, claims(nbf=NOW + 29, iat=NOW + 29), rs())),
            ("ok", "fractional exp", signed(head, claims(exp=NOW + 0.5), rs())),
            ("ok", "operator", signed(head, claims(role="operator", tenant_id=None), rs())),
            ("no", "alg none", signed({"alg": "none", "kid": "rsa-1"}, good, lambda _: b"x")),
            ("no", "alg none, no signature",
             signed({"alg": "none", "kid": "rsa-1"}, good, lambda _: b"")),
            ("no", "alg None, no kid", signed({"alg": "None"}, good, lambda _: b"x")),
            ("no", "HS256 with the RSA public key",
             signed({"alg": "HS256", "kid": "rsa-1"}, good, hs(public))),
            ("no", "HS256 with the RSA public key, stripped",
             signed({"alg": "HS256", "kid": "rsa-1"}, good, hs(public.strip()))),
            ("no", "HS256 named RS256", signed(head, good, hs(public))),
            ("no", "HS256 with an empty key", signed({"alg": "HS256", "kid": "rsa-1"}, good, hs(b""))),
            ("no", "RS512 of the same key",
             signed({"alg": "RS512", "kid": "rsa-1"}, good, rs(digest="-sha512"))),
            ("no", "ES256 under the RSA key's kid",
             signed({"alg": "ES256", "kid": "rsa-1"}, good, es)),
            ("no", "RS256 under the EC key's kid",
             signed({"alg": "RS256", "kid": "ec-1"}, good, rs())),
            ("no", "alg missing", signed({"kid": "rsa-1"}, good, rs())),
            ("no", "alg in another case", signed({"alg": "rs256", "kid": "rsa-1"}, good, rs())),
            ("no", "alg twice",
             b64(b'{"alg":"none","kid":"rsa-1","alg":"RS256"}') + "." + ".".join(token.split(".")[1:])),
            ("no", "another key", signed(head, good, rs(other))),
            ("no", "unknown kid", signed({**head, "kid": "rsa-2"}, good, rs())),
            ("no", "kid as a path", signed({**head, "kid": "../../dev/null"}, good, rs())),
            ("no", "no kid", signed({"alg": "RS256"}, good, rs())),
            ("no", "own jwk", signed({"alg": "RS256", "jwk": {"kty": "RSA"}}, good, rs(other))),
            ("no", "own jku",
             signed({"alg": "RS256", "kid": "x", "jku": "http://127.0.0.1/k"}, good, rs(other))),
            ("no", "crit", signed({**head, "crit": ["exp"]}, good, rs())),
            ("no", "signature cut", token[:-4]),
            ("no", "signature empty", token.rpartition(".")[0] + "."),
            ("no", "no signature", token.rpartition(".")[0]),
            ("no", "four parts", token + ".x"),
            ("no", "padding", token + "="),
            ("no", "payload changed",
             ".".join([token.split(".")[0], b64(json.dumps(claims(role="operator")).encode()),
                       token.split(".")[2]])),
            ("no", "expired", signed(head, claims(exp=NOW - 31), rs())),
            ("no", "exp missing", signed(head, claims(exp=None), rs())),
            ("no", "exp as text", signed(head, claims(exp=str(NOW + 600)), rs())),
            ("no", "exp huge", signed(head, claims(exp=1e30), rs())),
            ("no", "exp negative", signed(head, claims(exp=-1), rs())),
            ("no", "not yet valid", signed(head, claims(nbf=NOW + 31), rs())),
            ("no", "issued in the future", signed(head, claims(iat=NOW + 31), rs())),
            ("no", "iss missing", signed(head, claims(iss=None), rs())),
            ("no", "iss another", signed(head, claims(iss="https://issuer/"), rs())),
            ("no", "iss a list", signed(head, claims(iss=["https://issuer"]), rs())),
            ("no", "aud missing", signed(head, claims(aud=None), rs())),
            ("no", "aud another", signed(head, claims(aud="trainyard2"), rs())),
            ("no", "aud empty list", signed(head, claims(aud=[]), rs())),
            ("no", "sub missing", signed(head, claims(sub=None), rs())),
            ("no", "role missing", signed(head, claims(role=None), rs())),
            ("no", "role agent", signed(head, claims(role="agent"), rs())),
            ("no", "tenant missing", signed(head, claims(tenant_id=None), rs())),
            ("no", "tenant not an id", signed(head, claims(tenant_id="a/b"), rs())),
            ("no", "operator of a tenant", signed(head, claims(role="operator"), rs())),
            ("no", "payload a list", signed(head, b"[1]", rs())),
            ("no", "payload no JSON", signed(head, b"x", rs())),
            ("no", "claim twice",
             signed(head, json.dumps(good)[:-1].encode() + b',"role":"owner"}', rs())),
            ("no", "text", "x"),
            ("no", "dots", "..", ),
        ]
    with open(HERE / "token_cases.txt", "w", encoding="ascii") as file:
        file.write("# verdict | what | token; made by make_token_cases.py\n")
        for verdict, what, text in cases:
            file.write(f"{verdict}|{what}|{text}\n")


main()
