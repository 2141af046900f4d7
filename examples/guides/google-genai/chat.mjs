// An answer, a stream, and an error.
import { ApiError, GoogleGenAI } from "@google/genai";

const client = new GoogleGenAI({
  apiKey: process.env.GATEWAY_API_KEY,
  httpOptions: { baseUrl: process.env.GATEWAY_BASE_URL, timeout: 60_000 },
});

const answer = await client.models.generateContent({
  model: "sim-google",
  contents: "Hello there",
});
console.log(answer.text);
console.log("tokens:", answer.usageMetadata.totalTokenCount);

const stream = await client.models.generateContentStream({
  model: "sim-google",
  contents: "Hello there",
});
for await (const chunk of stream) process.stdout.write(chunk.text ?? "");
console.log();

try {
  await client.models.generateContent({ model: "no-such-model", contents: "Hello there" });
} catch (error) {
  if (!(error instanceof ApiError)) throw error;
  console.log(error.status);
}
