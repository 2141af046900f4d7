// The token of a link is in the fragment, which no server is sent: here it goes into the form.
'use strict';

const token = location.hash.slice(1);
if (token) {
  document.getElementById('link').value = token;
  document.getElementById('link-field').hidden = true;
  history.replaceState(null, '', location.pathname); // neither the history nor a bookmark keeps it
}
