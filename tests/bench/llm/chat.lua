-- wrk: posts the body in the file $LLM_BODY with the headers $LLM_HEADERS, a line each; prints JSON
-- at the end.
local file = assert(io.open(os.getenv("LLM_BODY"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/json"
for name, value in os.getenv("LLM_HEADERS"):gmatch("([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
