// Receive callbacks of tasks. GATEWAY_WEBHOOK_SECRET is the account's secret, `whsec_…`.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const key = Buffer.from(process.env.GATEWAY_WEBHOOK_SECRET.replace("whsec_", ""), "base64");
// ids of callbacks whose work is done; in production a table with a unique column
const handled = new Set();

// Whether the gateway signed these bytes in the last five minutes.
function isGenuine(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": time, "webhook-signature": sent } = headers;
  if (!id || !sent || !(Math.abs(Date.now() / 1000 - Number(time)) <= 300)) return false;
  const expected = createHmac("sha256", key).update(`${id}.${time}.`).update(body).digest();
  // during a rotation of the secret there are two signatures
  return sent.split(" ").some((part) => {
    const [version, text] = part.split(",");
    const given = Buffer.from(text ?? "", "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  });
}

createServer(async (request, response) => {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > 1_000_000) return response.writeHead(413, { Connection: "close" }).end();
    chunks.push(chunk);
  }
  const body = Buffer.concat(chunks);
  if (!isGenuine(request.headers, body)) return response.writeHead(401).end();
  const id = request.headers["webhook-id"];
  if (!handled.has(id)) {
    handled.add(id);
    const task = JSON.parse(body);
    console.log(task.id, task.status);
  }
  response.writeHead(204).end();
}).listen(Number(process.env.PORT), "127.0.0.1");
