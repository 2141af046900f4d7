// One MCP client of TypeScript on its whole way: sign-in, tools, a task, refresh, revocation.
// node flow.mjs PACKAGE MCP_URL SERVICE MODEL: prints {"authorize": URL} whenever its user has to
// sign in, reads the address that the browser was sent back to, and at last prints what it has seen.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";

const [variant, address, service, model] = process.argv.slice(2);
const [name, era] = variant.split(" ");
const url = new URL(`${address}/mcp`);
const REDIRECT = "http://127.0.0.1:33418/callback";

async function load() {
  if (name === "client") return import("@modelcontextprotocol/client");
  const parts = ["index", "streamableHttp", "auth"].map(
    (part) => import(`@modelcontextprotocol/sdk/client/${part}.js`),
  );
  return Object.assign({}, ...(await Promise.all(parts)));
}

const { Client, StreamableHTTPClientTransport, UnauthorizedError } = await load();
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

class Provider {
  redirectUrl = REDIRECT;
  clientMetadata = { client_name: `TypeScript ${variant}`, redirect_uris: [REDIRECT] };
  shown = [];
  state() {
    return (this.expected = randomBytes(16).toString("hex"));
  }
  clientInformation() {
    return this.client;
  }
  saveClientInformation(client) {
    this.client = client;
  }
  tokens() {
    return this.current;
  }
  saveTokens(tokens) {
    this.current = tokens;
  }
  redirectToAuthorization(to) {
    this.shown.push(to.href);
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
  saveDiscoveryState(found) {
    this.discovered = found;
  }
  discoveryState() {
    return this.discovered;
  }
  invalidateCredentials(scope) {
    if (scope === "all" || scope === "tokens") delete this.current;
    if (scope === "all" || scope === "client") delete this.client;
  }
}

const provider = new Provider();
const faults = [];

async function connect(options = { authProvider: provider }) {
  const client = new Client(
    { name: "flow", version: "1" },
    name === "client" ? { versionNegotiation: { mode: era } } : {},
  );
  const transport = new StreamableHTTPClientTransport(url, options);
  client.onerror = (error) => faults.push(String(error));
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    faults.length = 0;
    return { transport };
  }
  return { client, transport };
}

async function signIn() {
  const begun = provider.shown.length;
  const { client, transport } = await connect();
  assert.equal(client, undefined, "the first call needs no sign-in");
  assert.equal(provider.shown.length, begun + 1);
  console.log(JSON.stringify({ authorize: provider.shown.at(-1) }));
  const back = new URL((await lines.next()).value).searchParams;
  assert.equal(back.get("state"), provider.expected);
  if (name === "client") await transport.finishAuth(back);
  else await transport.finishAuth(back.get("code"));
  return (await connect()).client;
}

const progress = [];

// repeats a call that a machine at a standstill let fail, as its error says
async function call(client, tool, given, options) {
  const asked = { name: tool, arguments: given };
  for (let left = 10; ; left--) {
    const result = await (name === "client"
      ? client.callTool(asked, options)
      : client.callTool(asked, undefined, options));
    if (!result.isError) return result;
    if (!left) throw new Error(JSON.stringify(result.content));
    progress.length = 0;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

let client = await signIn();
const { tools } = await client.listTools();
const balance = await call(client, "check_balance", {});

// a task, waited for, with progress; and again by the same key
const asked = {
  service,
  model,
  action: "reference_to_video",
  idempotency_key: randomBytes(8).toString("hex"),
  params: { prompt: "A lighthouse", reference_image_urls: ["https://example.com/a.png"] },
};
const task = await call(client, "create_task", asked, { onprogress: (each) => progress.push(each) });
const again = await call(client, "create_task", asked);

// an access token that is not taken is refreshed without the user
const before = provider.current;
provider.current = { ...before, access_token: "expired" };
await call(client, "check_balance", {});
const refreshed = provider.current;
assert.equal(provider.shown.length, 1);

// after revocation the user signs in again
const metadata = await (await fetch(`${address}/.well-known/oauth-authorization-server`)).json();
const revoked = await fetch(metadata.revocation_endpoint, {
  method: "POST",
  body: new URLSearchParams({ token: refreshed.refresh_token, client_id: provider.client.client_id }),
});
assert.equal(revoked.status, 200);
await client.close();
client = await signIn();
await call(client, "check_balance", {});
await client.close();

// without an authorization server: an API key in a header
const headers = { Authorization: `Bearer ${process.env.KEY}` };
const keyed = await connect({ requestInit: { headers } });
const withKey = await call(keyed.client, "check_balance", {});
await keyed.client.close();

console.log(
  JSON.stringify({
    faults,
    tools: tools.map((tool) => tool.name),
    balance: balance.structuredContent,
    task: task.structuredContent,
    again: again.structuredContent,
    progress,
    rotated: refreshed.refresh_token !== before.refresh_token,
    withKey: withKey.structuredContent,
  }),
);
process.exit(0);
