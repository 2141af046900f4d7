// Pages work without this script: it keeps parts of them current, copies, and streams answers.
'use strict';

// A part is read anew from its own page when an event says that something has changed.
let isWanted = false, isBusy = false;
async function refresh() {
  isWanted = true;
  if (isBusy) return;
  isBusy = true;
  // nobody looks at a hidden page: it is read once it is shown
  while (isWanted && !document.hidden) {
    isWanted = false;
    const began = performance.now();
    await load();
    // a list that is slow to read is read seldom
    await new Promise(done => setTimeout(done, 9 * (performance.now() - began)));
  }
  isBusy = false;
}
async function load() {
  const parts = [...document.querySelectorAll('[data-live]')];
  try {
    const answer = await fetch(location.href, {headers: {Accept: 'text/html'}});
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    for (const part of parts) {
      const fresh = page.getElementById(part.id);
      if (fresh && !part.contains(document.activeElement) && fresh.innerHTML !== part.innerHTML) {
        part.replaceChildren(...fresh.childNodes);
      }
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the network: the next event tries again
  }
}
const live = document.querySelector('[data-live]');
if (live) {
  const events = new EventSource(live.dataset.live);
  events.addEventListener('change', refresh);
  document.addEventListener('visibilitychange', () => isWanted && refresh());
  addEventListener('pagehide', () => events.close());
}

for (const button of document.querySelectorAll('[data-copy]')) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = 'Copied';
  });
}

// A chat is shown while it arrives.
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data: ') && line !== 'data: [DONE]') yield JSON.parse(line.slice(6));
    }
  }
}
for (const form of document.querySelectorAll('form[data-stream]')) {
  const button = form.querySelector('button[type=submit]');
  const output = form.querySelector('output');
  form.addEventListener('submit', async event => {
    event.preventDefault();
    button.disabled = true;
    output.hidden = false;
    output.className = 'answer';
    output.textContent = '';
    output.setAttribute('aria-busy', 'true');
    const fields = new URLSearchParams(new FormData(form));
    fields.set('stream', 'true');
    try {
      const answer = await fetch(form.action, {method: 'POST', body: fields});
      if (!(answer.headers.get('content-type') || '').startsWith('text/event-stream')) {
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        throw new Error(page.querySelector('[role=alert]')?.textContent || 'Please sign in again.');
      }
      for await (const chunk of readEvents(answer.body)) {
        if (chunk.error) throw new Error(chunk.error.message);
        output.append(chunk.choices?.[0]?.delta?.content ?? '');
      }
      showCode(fields.get('model'), fields.get('message'));
    } catch (error) {
      output.className = 'problem';
      output.textContent = error.message;
    } finally {
      output.removeAttribute('aria-busy');
      button.disabled = false;
    }
  });
}

// What was sent takes the place of the words that the page was made with, in each language.
function showCode(model, message) {
  for (const code of document.querySelectorAll('pre[id^=code-] code')) {
    code.dataset.text ??= code.textContent;
    const inShell = code.dataset.text.startsWith('curl');
    const quote = text => {
      const json = JSON.stringify(text);
      return inShell ? json.replaceAll("'", `'"'"'`) : json;
    };
    code.textContent = code.dataset.text.replaceAll(/"your-model"|"your message"/g,
      found => quote(found === '"your-model"' ? model : message));
  }
}
