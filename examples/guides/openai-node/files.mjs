// A File, a Batch of moderations, and an error.
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

const client = new OpenAI({
  baseURL: `${process.env.GATEWAY_BASE_URL}/v1`,
  apiKey: process.env.GATEWAY_API_KEY,
});

const lines = Object.entries({ one: "a cat", two: "a dog" }).map(([custom_id, input]) =>
  JSON.stringify({
    custom_id,
    method: "POST",
    url: "/v1/moderations",
    body: { model: process.env.GATEWAY_MODERATION_MODEL, input },
  }),
);
const source = await client.files.create({
  file: await toFile(Buffer.from(lines.join("\n")), "lines.jsonl"),
  purpose: "batch",
});
console.log(source.filename, source.bytes);

let batch = await client.batches.create({
  input_file_id: source.id,
  endpoint: "/v1/moderations",
  completion_window: "24h",
});
while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
  await sleep(1000);
  batch = await client.batches.retrieve(batch.id);
}
console.log(batch.status, batch.request_counts.completed, "of", batch.request_counts.total);
const output = await (await client.files.content(batch.output_file_id)).text();
for (const line of output.trim().split("\n")) {
  const { custom_id, response } = JSON.parse(line);
  console.log(custom_id, response.body.results[0].flagged ? "flagged" : "not flagged");
}

try {
  await client.files.retrieve("file-none");
} catch (error) {
  console.log(error.status, error.code);
}
