// What OpenAI's unmodified SDK for Node.js does with language models (contract §7, annex C).
import assert from "node:assert/strict";
import OpenAI from "openai";
import { z } from "zod";
import { zodResponseFormat } from "openai/helpers/zod";

const { BASE_URL, KEY, SPARE, SECOND_SPARE } = process.env;
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: KEY, maxRetries: 0, timeout: 30_000 });
const ask = (content) => [{ role: "user", content }];
const ANSWER = "You said: Hello there, gateway";
const messages = ask("Hello there, gateway");
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

async function collectUntilError(stream) {
  const items = [];
  try {
    for await (const item of stream) items.push(item);
  } catch (error) {
    return { items, error };
  }
  throw new assert.AssertionError({ message: "no error" });
}

function caught(promise) {
  return promise.then(() => assert.fail("no error"), (error) => error);
}

export const checks = {
  async answers_and_streams_of_chat(model) {
    const { data, response } = await client.chat.completions.create({ model, messages }).withResponse();
    assert.equal(data.choices[0].message.content, ANSWER);
    assert.equal(data.model, model);
    assert.match(response.headers.get("x-request-id"), /^req_/);
    assert.match(data._request_id, /^req_/);
    const stream = await client.chat.completions.create({
      model, messages, stream: true, stream_options: { include_usage: true },
    });
    const chunks = await collect(stream);
    const last = chunks.pop();
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), ANSWER);
    assert.deepEqual([last.choices, last.usage.completion_tokens], [[], 5]);
    assert.ok(chunks.every((chunk) => chunk.usage === null && chunk.model === model));
  },

  async stream_helper_collects_the_completion(model) {
    const stream = client.chat.completions.stream({ model, messages });
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, ANSWER);
    assert.equal(deltas.join(""), ANSWER);
  },

  async tools_are_run_by_the_sdk(model) {
    for (const stream of [false, true]) {
      const asked = [];
      const runner = client.chat.completions.runTools({
        model, stream, messages: ask("Call get_weather for me"),
        tools: [{
          type: "function",
          function: {
            name: "get_weather", description: "Looks up the weather.", parameters: schema,
            parse: JSON.parse, function: ({ city }) => (asked.push(city), "9 degrees"),
          },
        }],
      });
      assert.match(await runner.finalContent(), /9 degrees/);
      assert.deepEqual(asked, ["sample"]);
    }
  },

  async structured_outputs_are_parsed(model) {
    const Weather = z.object({ city: z.string(), degrees: z.number().int() });
    const made = await client.chat.completions.parse({
      model, messages, response_format: zodResponseFormat(Weather, "weather"),
    });
    assert.deepEqual(made.choices[0].message.parsed, { city: "sample", degrees: 7 });
  },

  async answers_and_streams_of_responses(model) {
    const made = await client.responses.create({ model, input: "Hello there, gateway" });
    assert.equal(made.output_text, ANSWER);
    const stream = client.responses.stream({ model, input: "Hello there, gateway" });
    const events = await collect(stream);
    const final = await stream.finalResponse();
    assert.equal(final.output_text, ANSWER);
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, place) => place));
  },

  async tool_loop_of_responses(model) {
    const tools = [{ type: "function", name: "get_weather", parameters: schema, strict: false }];
    const input = ask("Call get_weather for me");
    const first = await client.responses.stream({ model, input, tools }).finalResponse();
    const [call] = first.output.filter((item) => item.type === "function_call");
    assert.equal(call.arguments, '{"city":"sample"}');
    input.push(call, { type: "function_call_output", call_id: call.call_id, output: "9 degrees" });
    assert.match((await client.responses.create({ model, input, tools })).output_text, /9 degrees/);
  },

  async models_are_listed_and_shown(model) {
    const ids = (await collect(client.models.list())).map((each) => each.id);
    assert.ok(ids.includes(model));
    assert.equal((await client.models.retrieve("acme/chat:free")).id, "acme/chat:free");
    const error = await caught(client.models.retrieve("nothing/at:all"));
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
  },

  async errors_have_their_classes(model) {
    const stranger = client.withOptions({ apiKey: "sk-" + "x".repeat(47) });
    const refused = await caught(stranger.chat.completions.create({ model, messages }));
    assert.ok(refused instanceof OpenAI.AuthenticationError);
    assert.equal(refused.code, "invalid_api_key");
    assert.match(refused.requestID, /^req_/);
    const invalid = await caught(client.chat.completions.create({ model, messages: [] }));
    assert.ok(invalid instanceof OpenAI.BadRequestError);
    assert.equal(invalid.param, "messages");
    const stateful = { model, input: "Hi", previous_response_id: "resp_1" };
    assert.equal((await caught(client.responses.create(stateful))).code, "unsupported_parameter");
    const busy = await caught(client.chat.completions.create({ model: SPARE, messages: ask("[[status=503]]") }));
    assert.ok(busy instanceof OpenAI.InternalServerError);
    assert.equal(busy.code, "service_unavailable");
  },

  async faults_in_mid_stream_are_errors() {
    const content = "[[words=20]] [[pieces=7]] [[drop=6]]";
    const chat = await client.chat.completions.create({ model: SECOND_SPARE, messages: ask(content), stream: true });
    const chunks = await collectUntilError(chat);
    assert.equal(chunks.error.code, "upstream_error");
    assert.match(chunks.items.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), /^The quick/);
    const responses = await client.responses.create({ model: SECOND_SPARE, input: content, stream: true });
    const events = await collectUntilError(responses);
    assert.equal(events.items[0].type, "response.created");
    assert.equal(events.error.code, "upstream_error");
  },

  async a_client_that_aborts_gets_no_more(model) {
    const stream = await client.chat.completions.create({
      model, messages: ask("[[words=500]] [[pause=0.02]]"), stream: true,
    });
    let count = 0;
    for await (const _ of stream) if (++count === 3) break;
    assert.ok(stream.controller.signal.aborted);
  },
};
