// Pages work without scripts. HTMX sends forms and reads parts anew; the rest is here.
'use strict';
const WRONG = '[aria-invalid=true]';

// The live region: a hidden page reads nothing, a slow one reads seldom, and what is in use stays.
let isStale = false, readAgainAt = 0, timer = 0;
function refresh() {
  timer = 0;
  if (isStale && !document.hidden) htmx.trigger('#region', 'stale');
}
function isRead(event) { // of the region by itself, not of a filter
  return event.detail.requestConfig.elt.id === 'region';
}
document.addEventListener('visibilitychange', refresh);
document.addEventListener('focusout', () => setTimeout(refresh));
document.addEventListener('htmx:beforeRequest', event => {
  if (!isRead(event)) return;
  const wait = readAgainAt - performance.now();
  isStale = document.hidden || wait > 0;
  if (!isStale) {
    event.detail.elt.beganAt = performance.now();
    return;
  }
  event.preventDefault();
  if (wait > 0) timer ||= setTimeout(refresh, wait);
});
document.addEventListener('htmx:afterRequest', event => {
  if (!isRead(event)) return;
  const now = performance.now();
  readAgainAt = now + 9 * (now - event.detail.elt.beganAt);
});
document.addEventListener('htmx:beforeSwap', event => {
  const {target, serverResponse, shouldSwap} = event.detail;
  const isWhole = serverResponse.includes(`id="${target.id}"`); // else of a proxy, or cut off
  isStale = isRead(event) && target.contains(document.activeElement);
  event.detail.shouldSwap = shouldSwap && isWhole && !isStale;
  if (!isRead(event)) showTrouble(shouldSwap && !isWhole);
});
document.addEventListener('htmx:sendError', event => isRead(event) || showTrouble(true));
function showTrouble(isShown) {
  const trouble = document.getElementById('trouble');
  if (trouble) trouble.hidden = !isShown;
}

// After an action the first thing to know is read out, and the keyboard goes on from there:
// at the first control that is wrong, if a form was refused.
document.addEventListener('htmx:afterSettle', event => {
  if (event.target.id !== 'main') return;
  const first = ['[role=alert]:not([hidden])', WRONG, '[role=status]', 'h1']
    .map(selector => event.target.querySelector(selector)).find(Boolean);
  if (first.matches(WRONG)) return first.focus();
  first.tabIndex = -1;
  first.focus({preventScroll: true});
});

// Elements that a swap brings are made ready too.
document.addEventListener('htmx:load', event => {
  const all = selector => [...event.detail.elt.querySelectorAll(selector)];
  all('[data-copy]').forEach(offerCopy);
  all('form[data-stream]').forEach(streamAnswer);
  all('[data-most]').forEach(boundFile);
  all('.sections [aria-current]').forEach(centre);
});

function centre(link) { // where the navigation is one line that scrolls; the page stays where it is
  const list = link.closest('ul');
  const [inner, outer] = [link, list].map(element => element.getBoundingClientRect());
  list.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
}

function boundFile(input) { // what is too large is refused before it is sent
  input.addEventListener('change', () => {
    const isLarge = input.files[0]?.size > Number(input.dataset.most);
    input.setCustomValidity(isLarge ? 'The file is too large.' : '');
    input.reportValidity();
  });
}

function offerCopy(button) {
  if (!navigator.clipboard) return;
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
function showRefused(form, refused) {
  form.replaceWith(refused);
  streamAnswer(refused);
  refused.querySelector(WRONG).focus();
}
function clearProblems(form) { // of what was sent before
  form.querySelectorAll('.wrong').forEach(problem => problem.remove());
  form.querySelectorAll(WRONG).forEach(control => control.removeAttribute('aria-invalid'));
}
function streamAnswer(form) {
  const button = form.querySelector('button[type=submit]');
  const output = form.querySelector('output');
  form.addEventListener('submit', async event => {
    event.preventDefault();
    button.disabled = true;
    clearProblems(form);
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
        const refused = page.querySelector(`form[action="${form.getAttribute('action')}"]`);
        if (refused?.querySelector(WRONG)) return showRefused(form, refused);
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
