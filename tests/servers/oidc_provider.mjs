// An OpenID Connect provider (panva's oidc-provider) for one client, with people who have no passwords.
// Arguments: folder of node_modules, port, client id, client secret, redirect URI, people as JSON
// {"login": {"email": …, "email_verified": …, "name": …}}. Whoever gives a login is signed in.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [modules, port, clientId, secret, redirect, people] = process.argv.slice(2);
const entry = pathToFileURL(`${modules}/oidc-provider/lib/index.js`);
const { Provider } = await import(entry);
const claims = JSON.parse(people);
const issuer = `http://127.0.0.1:${port}`;

const provider = new Provider(issuer, {
  clients: [{
    client_id: clientId,
    client_secret: secret,
    redirect_uris: [redirect],
    grant_types: ["authorization_code"],
    response_types: ["code"],
  }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
  cookies: { keys: ["test"] },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  pkce: { required: () => true },
  async findAccount(_, sub) {
    return claims[sub] && { accountId: sub, claims: async () => ({ sub, ...claims[sub] }) };
  },
});

async function interact(request, response, login) {
  const details = await provider.interactionDetails(request, response);
  const { prompt, params, session } = details;
  if (prompt.name === "login") {
    const result = claims[login] ? { login: { accountId: login } } : { error: "access_denied" };
    await provider.interactionFinished(request, response, result);
    return;
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

const handle = provider.callback();
createServer((request, response) => {
  const url = new URL(request.url, issuer);
  if (url.pathname.startsWith("/interaction/")) {
    interact(request, response, request.headers["x-login"]).catch((error) => {
      response.writeHead(500).end(String(error));
    });
  } else {
    handle(request, response);
  }
}).listen(Number(port), "127.0.0.1", () => console.log("listening"));
