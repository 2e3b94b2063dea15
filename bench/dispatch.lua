-- wrk: POSTs the same dispatch again and again; at the end one line of JSON.

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"session_id":"bench","src_lang":"en","tgt_lang":"zh","audio_ref":"blob://bench",' ..
  '"options":{"require_tts":false,"preferred_node_id":null}}'

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('{"requests":%d,"secs":%.6f,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
