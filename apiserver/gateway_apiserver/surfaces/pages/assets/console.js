// Pages work without this script: it keeps parts of them current, copies, and streams answers.
'use strict';

// A part is read anew from its own page when an event says that something has changed.
let due = false;
async function refresh() {
  if (due) return;
  due = true;
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
  } finally {
    due = false;
  }
}
const live = document.querySelector('[data-live]');
if (live) {
  const events = new EventSource(live.dataset.live);
  events.addEventListener('change', refresh);
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
