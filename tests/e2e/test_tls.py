"""TLS: which versions are spoken, certificates that change while the server runs, and nodes that authenticate with a certificate."""
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import xml.etree.ElementTree as xml

from harness import SLOW, Client, berth, eventually
from test_agent import Agent
from test_auth import ADMIN, TOKENS, AuthCase, GuardedServer, bearer, digest


class TlsCase(AuthCase):
    def openssl(self, *args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, cwd=self.dir)

    def authority(self, name="ca"):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                     "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        return self.dir / f"{name}.pem"

    def signed(self, name, subject, ca="ca", extension="subjectAltName=DNS:localhost,IP:127.0.0.1",
               key=("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")):
        """(certificate, key) with that subject, signed by the CA."""
        (self.dir / "ext").write_text(extension + "\n")
        self.openssl("req", "-newkey", *key, "-nodes", "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
                     "-days", "2", "-extfile", "ext", "-out", f"{name}.pem")
        return self.dir / f"{name}.pem", self.dir / f"{name}.key"

    def revoke(self, *names, ca="ca"):
        """Revokes certificates and writes the CA's revocation list; its file."""
        (self.dir / "ca.cnf").write_text("[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\ndefault_md=sha256\ndefault_crl_days=2\n")
        (self.dir / "index.txt").touch()
        how = ("ca", "-config", "ca.cnf", "-cert", f"{ca}.pem", "-keyfile", f"{ca}.key")
        for name in names:
            self.openssl(*how, "-revoke", f"{name}.pem")
        self.openssl(*how, "-gencrl", "-out", "new.crl")
        return (self.dir / "new.crl").rename(self.dir / f"{ca}.crl")

    def serve(self, **settings):
        cert, key = self.signed("server", "/CN=localhost")
        return self.guarded(ca=self.dir / "ca.pem", tls_cert=cert, tls_key=key, **settings)

    def serial(self, server):
        """The serial number of the certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=self.dir / "ca.pem")
        with socket.create_connection(("localhost", server.port), 30 * SLOW) as plain, \
                context.wrap_socket(plain, server_hostname="localhost") as secure:
            return secure.getpeercert()["serialNumber"]

    def as_node(self, server, name=None, subject=None, ca="ca", **more):
        """The status of a call that only a node may make, with a certificate of that subject."""
        context = ssl.create_default_context(cafile=self.dir / "ca.pem")
        if name:
            context.load_cert_chain(*self.signed(name, subject, ca))
        client = Client(server.port)
        client.connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=30 * SLOW)
        with client:
            return client.call("GET", more.get("path", "/v1/node/jobs?node_id=us&wait=0ms"), headers=more.get("headers")).status

    def secret(self, token):
        path = self.dir / f"secret-{token}"
        path.write_text(token + "\n")
        return path


class Versions(TlsCase):
    def test_nothing_below_1_2(self):
        """What sslscan finds about protocols, ciphers and known vulnerabilities."""
        self.authority()
        server = self.serve()
        done = subprocess.run(["sslscan", "--no-colour", "--xml=-", f"localhost:{server.port}"], capture_output=True, text=True, check=True)
        found = xml.fromstring(done.stdout).find("ssltest")
        spoken = {row.get("type") + row.get("version") for row in found.iter("protocol") if row.get("enabled") == "1"}
        self.assertEqual(spoken, {"tls1.2", "tls1.3"})
        weak = [row.get("cipher") for row in found.iter("cipher") if int(row.get("bits")) < 128 or
                any(word in row.get("cipher") for word in ("RC4", "DES", "NULL", "EXP", "MD5", "ADH", "anon"))]
        self.assertEqual(weak, [])
        self.assertTrue(list(found.iter("cipher")))
        for row in found.iter("heartbleed"):
            self.assertEqual(row.get("vulnerable"), "0")
        for name, good in (("compression", ("supported", "0")), ("renegotiation", ("supported", "0"))):
            for row in found.iter(name):
                self.assertEqual(row.get(good[0]), good[1], name)


    def test_1_2_only_with_forward_secrecy(self):
        """Recorded traffic must stay secret even if the server's key is stolen later; and no cipher block chaining."""
        self.authority()
        cert, key = self.signed("rsa", "/CN=localhost", key=("rsa:2048",))
        server = self.guarded(ca=self.dir / "ca.pem", tls_cert=cert, tls_key=key)

        def agreed(cipher):
            context = ssl.create_default_context(cafile=self.dir / "ca.pem")
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(cipher + ":@SECLEVEL=0")
            with socket.create_connection(("localhost", server.port), 30 * SLOW) as plain, \
                    context.wrap_socket(plain, server_hostname="localhost") as secure:
                return secure.cipher()[0]

        for cipher in ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"):
            self.assertEqual(agreed(cipher), cipher)
        for cipher in ("AES128-GCM-SHA256", "AES256-SHA", "ECDHE-RSA-AES128-SHA256", "ECDHE-RSA-AES256-SHA"):
            with self.assertRaises(ssl.SSLError, msg=cipher):
                agreed(cipher)

    def test_a_server_by_its_alternative_names(self):
        """A common name without alternative names is not accepted."""
        self.authority()
        for extension, code in (("subjectAltName=DNS:localhost", 0), ("basicConstraints=CA:FALSE", 5)):
            cert, key = self.signed("named", "/CN=localhost", extension=extension)
            server = GuardedServer(self.dir / "data", self.dir, config=self.config, tls_cert=cert, tls_key=key)
            done = berth("node", "ls", "--addr", f"https://localhost:{server.port}", "--ca-file", self.dir / "ca.pem",
                         "--token-file", self.secret(ADMIN))
            agent = Agent(self, f"wss://localhost:{server.port}", "us", ca_file=self.dir / "ca.pem", token_file=self.secret("worker-us-91e4"))
            self.agents.append(agent)
            wanted = "agent.connected" if code == 0 else "agent.connect_failed"
            eventually(wanted, lambda: agent.events(wanted))
            agent.stop()
            server.kill()
            self.assertEqual(done.returncode, code, done.stderr)

    def test_browsers_come_back_with_tls(self):
        self.authority()
        self.assertIn("max-age=", self.serve(listen="0.0.0.0:0").get("/").headers["Strict-Transport-Security"])
        for more in (self.guarded, self.serve):
            self.servers.pop().stop()
            self.assertNotIn("Strict-Transport-Security", more().get("/").headers)


class Changing(TlsCase):
    def test_a_certificate_that_changes(self):
        self.authority()
        server = self.serve()
        before = self.serial(server)
        with server.client() as kept:
            self.assertEqual(kept.call("GET", "/healthz").status, 200)
            cert, key = self.signed("next", "/CN=localhost")
            shutil.move(key, self.dir / "server.key")  # for a moment certificate and key do not match
            shutil.move(cert, self.dir / "server.pem")
            eventually("new connections get the new certificate", lambda: self.serial(server) != before)
            self.assertEqual(kept.call("GET", "/healthz").status, 200, "existing connections go on")
        self.assertIn("event=tls.reloaded", server.log)

    def test_a_certificate_that_is_none(self):
        self.authority()
        server = self.serve()
        before = self.serial(server)
        (self.dir / "server.pem").write_text("nonsense")
        eventually("the certificate is refused", lambda: "event=tls.refused" in server.log)
        self.assertEqual(self.serial(server), before)

    def test_an_agent_takes_a_new_token_and_a_new_authority(self):
        """Both files are read again for each connection, so the agent need not be restarted."""
        self.authority()
        server = self.serve()
        token = self.secret("worker-us-91e4")
        shutil.copy(self.dir / "ca.pem", self.dir / "trusted.pem")
        agent = Agent(self, f"wss://localhost:{server.port}", "us", token_file=token, ca_file=self.dir / "trusted.pem")
        self.agents.append(agent)
        agent.connected()
        made = server.post("/v1/tokens", {"name": "us-2", "scopes": ["node"], "node_id": "us"})
        token.write_text(made["token"] + "\n")
        self.authority("other")
        self.signed("fresh", "/CN=localhost", ca="other")
        (self.dir / "trusted.pem").write_text((self.dir / "other.pem").read_text())
        shutil.copy(self.dir / "fresh.key", self.dir / "server.key")
        shutil.copy(self.dir / "fresh.pem", self.dir / "server.pem")
        eventually("the certificate is reloaded", lambda: "event=tls.reloaded" in server.log)
        left = [{"name": token.rsplit("-", 1)[0], "sha256": digest(token), "scopes": scopes, "format": 2}
                for token, (scopes, _) in TOKENS.items() if token != "worker-us-91e4"]
        self.config.write_text(json.dumps({"tokens": left}))
        server.ca = self.dir / "other.pem"
        server.process.send_signal(signal.SIGHUP)
        eventually("the agent has connected again", lambda: len(agent.events("agent.connected")) == 2, 30)
        self.assertIn("code=4003", agent.log)


class Certified(TlsCase):
    def test_a_node_by_its_certificate(self):
        self.authority()
        self.authority("other")
        server = self.serve(tls_client_ca=self.dir / "ca.pem", tls_client_auth="optional")
        self.assertEqual(self.as_node(server), 401, "no certificate, no token")
        self.assertNotIn(self.as_node(server, "us", "/CN=us"), (401, 403))
        self.assertEqual(self.as_node(server, "hk", "/CN=hk"), 403, "the certificate belongs to another node")
        self.assertEqual(self.as_node(server, "two", "/CN=us/CN=hk"), 401, "a subject with two names is not accepted")
        self.assertEqual(self.as_node(server, "odd", "/CN=u s"), 401, "a name that no node can have")
        self.assertEqual(self.as_node(server, "us", "/CN=us", path="/v1/jobs"), 401, "a certificate only allows calls of nodes")
        self.assertEqual(self.as_node(server, "us", "/CN=us", path="/v1/jobs", headers=bearer("reader-5c1a")), 200)
        self.assertEqual(self.as_node(server, "us", "/CN=us", headers=bearer("nobody-0000")), 401,
                         "a wrong token is refused in spite of a certificate")
        self.assertEqual(self.as_node(server, "hk", "/CN=hk", headers=bearer("worker-us-91e4")), 403,
                         "the certificate does not name the token's node")
        with self.assertRaises((ssl.SSLError, OSError, http.client.HTTPException)):
            self.as_node(server, "us", "/CN=us", ca="other")

    def test_nobody_without_one(self):
        self.authority()
        server = self.serve(tls_client_ca=self.dir / "ca.pem")
        cert, key = self.signed("harness", "/CN=harness")
        context = ssl.create_default_context(cafile=self.dir / "ca.pem")
        context.load_cert_chain(cert, key)

        def client():
            made = Client(server.port)
            made.connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=30 * SLOW)
            return made

        server.client = client
        with self.assertRaises((ssl.SSLError, OSError, http.client.HTTPException)):
            self.as_node(server)
        self.assertNotIn(self.as_node(server, "us", "/CN=us"), (401, 403))
        url = ("--addr", f"https://localhost:{server.port}", "--ca-file", self.dir / "ca.pem", "--token-file", self.secret(ADMIN))
        self.assertEqual(berth("node", "ls", *url).returncode, 5)
        done = berth("node", "ls", *url, "--cert-file", cert, "--key-file", key)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(berth("node", "ls", *url, "--cert-file", cert).returncode, 2)

    def test_an_agent_with_a_certificate_and_no_token(self):
        self.authority()
        server = self.serve(tls_client_ca=self.dir / "ca.pem", tls_client_auth="optional")
        cert, key = self.signed("us", "/CN=us")
        agent = Agent(self, f"wss://localhost:{server.port}", "us", ca_file=self.dir / "ca.pem", tls_cert=cert, tls_key=key)
        self.agents.append(agent)
        agent.connected()
        stranger = Agent(self, f"wss://localhost:{server.port}", "hk", ca_file=self.dir / "ca.pem", tls_cert=cert, tls_key=key)
        self.agents.append(stranger)
        eventually("the agent with another node's certificate is refused",
                   lambda: stranger.events("agent.connect_failed") or stranger.events("agent.disconnected"))
        self.assertEqual([node["node_id"] for node in self.ok(server.get("/v1/nodes"))["nodes"]], ["us"])


class Revoked(TlsCase):
    def test_a_certificate_that_is_revoked(self):
        """Its connection ends when the list is loaded, it cannot connect again, and other nodes are not affected."""
        self.authority()
        crl = self.revoke()
        server = self.serve(tls_client_ca=self.dir / "ca.pem", tls_client_crl=crl, tls_client_auth="optional")
        agents = {}
        for name in ("us", "hk"):
            cert, key = self.signed(name, f"/CN={name}")
            agents[name] = Agent(self, f"wss://localhost:{server.port}", name, ca_file=self.dir / "ca.pem", tls_cert=cert, tls_key=key)
            self.agents.append(agents[name])
            agents[name].connected()
        self.revoke("us")
        eventually("the agent with the revoked certificate is disconnected", lambda: agents["us"].events("agent.disconnected"))
        eventually("the agent with the revoked certificate is refused",
                   lambda: any("revoked" in str(event) for event in agents["us"].events("agent.connect_failed")))
        eventually("tls.revoked is logged", lambda: "event=tls.revoked connections=1" in server.log)
        self.assertFalse(agents["hk"].events("agent.disconnected"))
        self.assertEqual(self.as_node(server), 401, "without a certificate or token the call is refused as before")

    def test_a_list_that_is_none(self):
        self.authority()
        cert, key = self.signed("server", "/CN=localhost")
        (self.dir / "bad.crl").write_text("nothing")
        tls = ("--tls-cert", cert, "--tls-key", key, "--tls-client-crl", self.dir / "bad.crl")
        for more, word in (((), "tls_client_ca"), (("--tls-client-ca", self.dir / "ca.pem"), "bad.crl")):
            done = berth("server", "--listen", "127.0.0.1:0", "--data-dir", self.dir / "none", *tls, *more)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(word, done.stderr)


class Dev(TlsCase):
    """`berth dev` with a certificate: its own agent uses TLS as well."""

    def dev(self, cert, key, **more):
        server = GuardedServer(self.dir / "data", self.dir, ca=self.dir / "ca.pem", verb="dev", tls_cert=cert, tls_key=key,
                               **{"config": self.config, **more})
        self.servers.append(server)
        return server

    def test_one_that_signed_itself(self):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=dev",
                     "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "dev.key", "-out", "ca.pem")
        server = self.dev(self.dir / "ca.pem", self.dir / "dev.key")
        eventually("the agent of berth dev has registered", lambda: server.get("/v1/nodes").json["nodes"])
        self.assertIn(f"berth dev: https://127.0.0.1:{server.port} ", server.log)

    def test_one_of_an_authority(self):
        self.authority()
        server = self.dev(*self.signed("server", "/CN=localhost"), env={"BERTH_CA_FILE": str(self.dir / "ca.pem")})
        eventually("the agent of berth dev has registered", lambda: server.get("/v1/nodes").json["nodes"])

    def test_where_nodes_must_show_one_it_says_that_it_cannot(self):
        self.authority()
        cert, key = self.signed("server", "/CN=localhost")
        done = berth("dev", "--listen", "127.0.0.1:0", "--data-dir", self.dir / "data", "--tls-cert", cert, "--tls-key", key,
                     "--tls-client-ca", self.dir / "ca.pem")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("The agent of `berth dev` has no certificate to show", done.stderr)
