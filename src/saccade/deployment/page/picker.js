// Where an image comes from: a file, a drop, the clipboard or the camera.
import { byId } from "/page/build.js";

export function listen(take, complain) {
  for (const id of ["file", "capture"]) {
    const input = byId(id);
    input.addEventListener("change", () => {
      if (input.files.length) take(input.files[0]);
    });
    input.addEventListener("click", () => (input.value = "")); // the same file may be chosen again
  }
  listenToDrops(take, complain);
  listenToPaste(take, complain);
  listenToCamera(take, complain);
}

function listenToDrops(take, complain) {
  const zone = byId("drop");
  const over = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  // A drop beside the zone must not make the browser leave the page.
  document.addEventListener("dragover", over(true));
  document.addEventListener("dragleave", over(false));
  document.addEventListener("drop", (event) => {
    over(false)(event);
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
    else complain("What was dropped is not a file; drop an image.");
  });
}

function listenToPaste(take, complain) {
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) {
      event.preventDefault();
      take(file);
    } else if (!["token", "text", "pair"].includes(event.target.id)) {
      complain("There is no image in the clipboard; copy one first.");
    }
  });
  if (!navigator.clipboard?.read) return;
  const button = byId("paste");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      for (const item of await navigator.clipboard.read()) {
        const kind = item.types.find((type) => type.startsWith("image/"));
        if (kind) return take(await item.getType(kind));
      }
      complain("There is no image in the clipboard; copy one first.");
    } catch {
      complain("The browser does not let this page read the clipboard; paste with the keyboard instead.");
    }
  });
}

function listenToCamera(take, complain) {
  if (!navigator.mediaDevices?.getUserMedia) {
    // Only a secure page gets the camera itself; a telephone's own camera serves any.
    byId("capture-way").hidden = !matchMedia("(pointer: coarse)").matches;
    return;
  }
  const [button, dialog, video] = [byId("photograph"), byId("camera"), byId("camera-image")];
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      dialog.showModal();
    } catch {
      complain("There is no camera, or the browser does not let this page use it.");
    }
  });
  dialog.addEventListener("close", () => {
    video.srcObject?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  });
  byId("camera-cancel").addEventListener("click", () => dialog.close());
  byId("camera-take").addEventListener("click", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    if (!canvas.width) return;
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      dialog.close();
      if (blob) take(blob);
    }, "image/jpeg", 0.92);
  });
}
