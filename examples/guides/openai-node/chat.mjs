// An answer, the same as a stream, and what the call cost.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.GATEWAY_BASE_URL}/v1`,
  apiKey: process.env.GATEWAY_API_KEY,
});
const messages = [{ role: "user", content: "Hello there" }];

const answer = await client.chat.completions.create({ model: "sim-chat", messages });
console.log(answer.choices[0].message.content);

const stream = await client.chat.completions.create({
  model: "sim-chat",
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  if (chunk.usage) {
    console.log("\ntokens:", chunk.usage.prompt_tokens, "in,", chunk.usage.completion_tokens, "out");
  }
}

const { response } = await client.chat.completions
  .create({ model: "sim-chat", messages })
  .withResponse();
console.log("cost:", response.headers.get("x-gateway-cost"), "USD");
