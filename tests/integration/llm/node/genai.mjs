// What Google's unmodified SDK for Node.js does with language models (contract §8, annex C).
import assert from "node:assert/strict";
import { ApiError, FunctionCallingConfigMode, GoogleGenAI, Type } from "@google/genai";

const { BASE_URL, KEY, SPARE, SECOND_SPARE } = process.env;
const open = (apiKey, options = {}) =>
  new GoogleGenAI({ apiKey, httpOptions: { baseUrl: BASE_URL, ...options } });
const client = open(KEY);
const ANSWER = "You said: Hello there, gateway";
const contents = "Hello there, gateway";

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

function caught(promise) {
  return promise.then(() => assert.fail("no error"), (error) => error);
}

export const checks = {
  async answers_and_streams(model) {
    for (const apiVersion of ["v1", "v1beta"]) {
      const { models } = open(KEY, { apiVersion });
      const made = await models.generateContent({ model, contents });
      assert.deepEqual([made.text, made.modelVersion], [ANSWER, model]);
      const chunks = await collect(await models.generateContentStream({ model, contents }));
      assert.equal(chunks.map((chunk) => chunk.text ?? "").join(""), ANSWER);
      const last = chunks.at(-1);
      assert.equal(last.candidates[0].finishReason, "STOP");
      assert.deepEqual(last.usageMetadata, made.usageMetadata);
    }
  },

  async chat_keeps_its_history(model) {
    const chat = client.chats.create({ model, config: { systemInstruction: "Be brief." } });
    assert.equal((await chat.sendMessage({ message: contents })).text, ANSWER);
    const chunks = await collect(await chat.sendMessageStream({ message: "And again" }));
    assert.equal(chunks.map((chunk) => chunk.text ?? "").join(""), `${ANSWER} And again`);
  },

  async tool_loop(model) {
    const parameters = { type: Type.OBJECT, properties: { city: { type: Type.STRING } } };
    const config = {
      tools: [{ functionDeclarations: [{ name: "get_weather", parameters }] }],
      toolConfig: { functionCallingConfig: { mode: FunctionCallingConfigMode.ANY } },
    };
    const turns = [{ role: "user", parts: [{ text: "How is the weather?" }] }];
    const made = await client.models.generateContent({ model, contents: turns, config });
    const [call] = made.functionCalls;
    assert.deepEqual([call.name, call.args], ["get_weather", { city: "sample" }]);
    const streamed = await collect(
      await client.models.generateContentStream({ model, contents: turns, config }),
    );
    assert.equal(streamed.flatMap((chunk) => chunk.functionCalls ?? []).length, 1);
    const functionResponse = { id: call.id, name: call.name, response: { degrees: 9 } };
    turns.push(made.candidates[0].content, { role: "user", parts: [{ functionResponse }] });
    const last = await client.models.generateContent({ model, contents: turns });
    assert.match(last.text, /"degrees":9/);
  },

  async structured_output_and_images(model) {
    const responseSchema = { type: Type.OBJECT, properties: { degrees: { type: Type.INTEGER } } };
    const config = { responseMimeType: "application/json", responseSchema };
    const made = await client.models.generateContent({ model, contents, config });
    assert.deepEqual(JSON.parse(made.text), { degrees: 7 });
    const inlineData = { data: Buffer.alloc(60).toString("base64"), mimeType: "image/png" };
    const seen = await client.models.generateContent({ model, contents: ["What is this?", { inlineData }] });
    assert.equal(seen.usageMetadata.promptTokenCount, 88);
  },

  async models_are_listed_and_shown(model) {
    const names = (await collect(await client.models.list({ config: { pageSize: 9 } }))).map((each) => each.name);
    assert.ok(names.length > 40 && names.includes(`models/${model}`));
    assert.equal((await client.models.get({ model: "acme/chat:free" })).name, "models/acme/chat:free");
  },

  async errors_have_their_status(model) {
    const models = client.models;
    const stranger = open("sk-" + "x".repeat(47));
    for (const [call, status] of [
      [() => models.countTokens({ model, contents }), 404],
      [() => models.embedContent({ model, contents }), 404],
      [() => models.generateContent({ model: "nothing", contents }), 404],
      [() => models.generateContent({ model, contents, config: { maxOutputTokens: 0 } }), 400],
      [() => models.generateContent({ model: SPARE, contents: "[[status=503]]" }), 503],
      [() => models.generateContentStream({ model: SPARE, contents: "[[status=503]]" }), 503],
      [() => stranger.models.generateContent({ model, contents }), 401],
    ]) {
      const error = await caught(call());
      assert.ok(error instanceof ApiError, String(error));
      assert.equal(error.status, status, String(error));
      assert.equal(JSON.parse(error.message).error.code, status);
    }
  },

  async faults_in_mid_stream_are_errors() {
    const prompt = "[[words=20]] [[pieces=7]] [[drop=6]]";
    const stream = await client.models.generateContentStream({ model: SECOND_SPARE, contents: prompt });
    const texts = [];
    const error = await caught((async () => {
      for await (const chunk of stream) texts.push(chunk.text ?? "");
    })());
    assert.match(texts.join(""), /^The quick/);
    assert.equal(error.status, 502, String(error));
  },
};
