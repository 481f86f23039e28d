// Questions to the server. A token, where one is wanted, is asked for once and kept until the tab is closed.
import { byId } from "/page/build.js";

const KEY = "saccade-token";

export class Refused extends Error {}

export async function ask(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused("The server cannot be reached; is it still running?");
    }
    if (response.status !== 401) {
      if (!response.ok) throw new Refused(await reason(response));
      return response;
    }
    await newToken(token !== null);
  }
}

export const askJson = async (path, options) => (await ask(path, options)).json();

async function reason(response) {
  const answer = await response.json().catch(() => ({}));
  return typeof answer.detail === "string" ? answer.detail : `The server answered ${response.status}.`;
}

let asking = null;

function newToken(wrong) {
  asking ??= new Promise((resolve) => {
    const form = byId("token-form");
    const field = byId("token");
    form.hidden = false;
    byId("alarm").textContent = wrong ? "That token is not the server's." : "";
    field.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value);
      field.value = "";
      form.hidden = true;
      asking = null;
      resolve();
    };
  });
  return asking;
}
