/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/module.h"

#include "client/python/src/array.h"
#include "client/python/src/buffer.h"
#include "client/python/src/channel.h"
#include "client/python/src/client.h"
#include "client/python/src/dlpack.h"
#include "client/python/src/error.h"
#include "client/python/src/frame.h"
#include "client/python/src/hooks.h"
#include "client/python/src/names.h"
#include "client/python/src/pool.h"
#include "client/python/src/share.h"
#include "client/python/src/stream.h"
#include "client/python/src/upload.h"

static PyObject *module_default_client(PyObject *module, PyObject *none) {
    (void)none;
    return client_default_object(PyModule_GetState(module));
}

static PyObject *module_find_client(PyObject *module, PyObject *identity) {
    const char *text = identity == Py_None ? NULL : PyUnicode_AsUTF8AndSize(identity, NULL);
    return text == NULL && identity != Py_None ? NULL : client_find(PyModule_GetState(module), text);
}

static PyObject *module_private_socket(PyObject *module, PyObject *none) {
    const char *path = gpupool_internal_private_path();
    (void)module;
    (void)none;
    return path != NULL ? PyUnicode_DecodeFSDefault(path) : Py_NewRef(Py_None);
}

static PyObject *module_note_end(PyObject *module, PyObject *none) {
    (void)module;
    (void)none;
    client_set_ending(true);
    Py_RETURN_NONE;
}

static PyObject *module_say_farewell(PyObject *module, PyObject *none) {
    (void)module;
    (void)none;
    WITHOUT_LOCK(gpupool_internal_say_farewell());
    Py_RETURN_NONE;
}

static PyObject *module_keep_for_allocators(PyObject *module, PyObject *none) {
    (void)module;
    (void)none;
    client_keep_for_allocators();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"default_client", module_default_client, METH_NOARGS,
     "default_client()\n--\n\nReturns the process's default Client, opened by the first call that needs "
     "it.\n\n"
     "GPUPOOL_SOCKET and GPUPOOL_ALLOC_TIMEOUT in the environment are its options. A forked child gets one "
     "of its "
     "own, and so does a process whose daemon was restarted."},
    {"_keep_for_allocators", module_keep_for_allocators, METH_NOARGS,
     "_keep_for_allocators()\n--\n\nThe allocators of this library are about to be used: the default client "
     "that they "
     "take memory of stays open."},
    {"_find_client", module_find_client, METH_O,
     "_find_client(identity)\n--\n\nReturns an open Client of a daemon, None: the default one, or None."},
    {"_private_socket", module_private_socket, METH_NOARGS,
     "_private_socket()\n--\n\nReturns the path of the private daemon of this process and its children, or "
     "None."},
    {"_note_end", module_note_end, METH_NOARGS,
     "_note_end()\n--\n\nThe interpreter ends: clients stay open whose objects die, until the farewell."},
    {"_say_farewell", module_say_farewell, METH_NOARGS,
     "_say_farewell()\n--\n\nAt the end of the process, waits for the GPU and says farewell for all clients, "
     "whatever "
     "buffers are open. No code of the program uses them any more."},
    {"_wait_for_device", (PyCFunction)(void (*)(void))hooks_wait_for_device, METH_FASTCALL,
     "_wait_for_device(client, device)\n--\n\nWaits for all work of the process on a device."},
    {"_is_captured", (PyCFunction)(void (*)(void))hooks_is_captured, METH_FASTCALL,
     "_is_captured(client, device, stream)\n--\n\nWhether a stream is being captured into a graph."},
    {"_send_held", (PyCFunction)(void (*)(void))share_send_held, METH_FASTCALL,
     "_send_held(buffer, stream, lifetime)\n--\n\nAs Buffer.send() for one taker. The lifetime counts from "
     "the end of the session."},
    {"_upload_file", (PyCFunction)(void (*)(void))upload_file, METH_FASTCALL,
     "_upload_file(buffer, offset, fd, file_offset, nbytes)\n--\n\nReads a part of a file into a buffer of a "
     "device pool, in the order of the buffer's stream. On return all of it was read."},
    {"_alloc_timeout", hooks_alloc_timeout, METH_O,
     "_alloc_timeout(client)\n--\n\nThe seconds that alloc_timeout says; math.inf: no limit."},
    {"_set_owner", (PyCFunction)(void (*)(void))dlpack_set_owner, METH_FASTCALL,
     "_set_owner(capsule, owner)\n--\n\nHas the owner live as long as the consumer of a DLPack capsule. "
     "Returns "
     "the capsule."},
    {"_check_memory", hooks_check_memory, METH_O,
     "_check_memory(address)\n--\n\nRaises ForkedError for memory of a pool that a parent of this process "
     "has."},
    {"attach", (PyCFunction)(void (*)(void))share_attach, METH_FASTCALL | METH_KEYWORDS,
     "attach(token, stream=None, *, read_only=False, client=None, can_sleep=False)\n--\n\nReturns a Buffer "
     "over memory that "
     "another "
     "process shared by a token.\n\n"
     "stream: the stream that reads it: it waits, on the GPU, for the work that the token names. None: the "
     "call waits.\n"
     "read_only: the memory is mapped for reading alone. Device pools with export = vmm.\n"
     "client: a Client; None: the default one.\n"
     "can_sleep: the buffer can sleep with keep=\"gpu\". Device pools with export = vmm."},
    {"revoke", (PyCFunction)(void (*)(void))share_revoke, METH_FASTCALL | METH_KEYWORDS,
     "revoke(token, *, client=None)\n--\n\nTakes back a token of Buffer.send(): no process can attach by it "
     "any more.\n\n"
     "Raises NoTokenError if it was taken, or its time is up."},
    {"_is_mapped_read_only", (PyCFunction)share_is_mapped_read_only, METH_O,
     "_is_mapped_read_only(buffer)\n--\n\nWhether a process that the Buffer is sent to maps it for reading "
     "alone."},
    {"_publish", (PyCFunction)(void (*)(void))names_publish, METH_FASTCALL | METH_KEYWORDS,
     "_publish(name, buffers, stream, directory, flags)\n--\n\nFor gpupool.names."},
    {"_open_name", (PyCFunction)(void (*)(void))names_open, METH_FASTCALL | METH_KEYWORDS,
     "_open_name(name, generation, may_build, flags, stream, timeout, client)\n--\n\nFor gpupool.names."},
    {"_watch_name", (PyCFunction)(void (*)(void))names_watch, METH_FASTCALL | METH_KEYWORDS,
     "_watch_name(name, generation, timeout, client)\n--\n\nFor gpupool.names."},
    {"_end_name", (PyCFunction)(void (*)(void))names_end, METH_FASTCALL | METH_KEYWORDS,
     "_end_name(name, generation, client)\n--\n\nFor gpupool.names."},
    {"_list_names", (PyCFunction)(void (*)(void))names_list, METH_FASTCALL | METH_KEYWORDS,
     "_list_names(client)\n--\n\nFor gpupool.names."},
    {"_make_channel", (PyCFunction)(void (*)(void))channel_make, METH_FASTCALL | METH_KEYWORDS,
     "_make_channel(name, pool, slot_bytes, slots, consumers, metadata_bytes, policy, keep)\n--\n\nFor "
     "gpupool.channels."},
    {"_lend", (PyCFunction)(void (*)(void))dlpack_lend, METH_FASTCALL,
     "_lend(array, stream)\n--\n\nReturns a DLPack capsule of an Array, also of one that is read-only, for "
     "consumers that know no such memory. stream: the consumer's; None: no order is needed."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **ret_type) {
    *ret_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *ret_type == NULL ? -1 : PyModule_AddType(module, *ret_type);
}

static int add_tuple(PyObject *module, PyStructSequence_Desc *description, PyTypeObject **ret_type) {
    *ret_type = PyStructSequence_NewType(description);
    return *ret_type == NULL ? -1 : PyModule_AddType(module, *ret_type);
}

/* When the interpreter has ended: no code of Python runs any more, and no object dies. CUDA is still there.
 */
static bool is_at_exit;

static void at_exit(void) {
    gpupool_internal_say_farewell();
    is_at_exit = false; /* a program that embeds Python may start it again */
    client_set_ending(false);
}

static void say_farewell_at_exit(void) {
    if (!is_at_exit)
        is_at_exit = Py_AtExit(at_exit) == 0;
}

static int module_exec(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);

    say_farewell_at_exit();
    return errors_add(module, state) < 0 || add_type(module, &client_spec, &state->client_type) < 0 ||
                   add_type(module, &pool_spec, &state->pool_type) < 0 ||
                   add_type(module, &buffer_spec, &state->buffer_type) < 0 ||
                   add_type(module, &array_spec, &state->array_type) < 0 ||
                   add_type(module, &stream_spec, &state->stream_type) < 0 ||
                   add_type(module, &producer_spec, &state->producer_type) < 0 ||
                   add_type(module, &consumer_spec, &state->consumer_type) < 0 ||
                   add_type(module, &frame_spec, &state->frame_type) < 0 ||
                   add_tuple(module, &pool_info_desc, &state->pool_info_type) < 0 ||
                   add_tuple(module, &buffer_info_desc, &state->buffer_info_type) < 0 ||
                   PyModule_AddIntConstant(module, "NO_STREAM", -1) < 0 ||
                   PyModule_AddIntConstant(module, "PER_THREAD", 2) < 0 ||
                   PyModule_AddStringConstant(module, "__version__", gpupool_version()) < 0
               ? -1
               : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    struct module_state *state = PyModule_GetState(module);
    Py_VISIT(state->client_type);
    Py_VISIT(state->pool_type);
    Py_VISIT(state->buffer_type);
    Py_VISIT(state->array_type);
    Py_VISIT(state->stream_type);
    Py_VISIT(state->producer_type);
    Py_VISIT(state->consumer_type);
    Py_VISIT(state->frame_type);
    Py_VISIT(state->pool_info_type);
    Py_VISIT(state->buffer_info_type);
    Py_VISIT(state->error);
    for (size_t i = 0; i < ERROR_KINDS; i++)
        Py_VISIT(state->errors[i]);
    Py_VISIT(state->default_client);
    return 0;
}

static int module_clear(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->default_client);
    Py_CLEAR(state->client_type);
    Py_CLEAR(state->pool_type);
    Py_CLEAR(state->buffer_type);
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->stream_type);
    Py_CLEAR(state->producer_type);
    Py_CLEAR(state->consumer_type);
    Py_CLEAR(state->frame_type);
    Py_CLEAR(state->pool_info_type);
    Py_CLEAR(state->buffer_info_type);
    Py_CLEAR(state->error);
    for (size_t i = 0; i < ERROR_KINDS; i++)
        Py_CLEAR(state->errors[i]);
    return 0;
}

static void module_free(void *module) {
    (void)module_clear(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "gpupool._gpupool",
    .m_doc = "The C part of the package gpupool.",
    .m_size = sizeof(struct module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__gpupool(void);

PyMODINIT_FUNC PyInit__gpupool(void) {
    return PyModuleDef_Init(&definition);
}
