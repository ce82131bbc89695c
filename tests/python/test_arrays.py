# SPDX-License-Identifier: Apache-2.0
"""Memory of buffers as arrays: the buffer protocol, DLPack, the CUDA array interface, NumPy and PyTorch."""
import ctypes
import gc
import unittest

import gpupool
import scene
from scene import needs_numpy, needs_torch, numpy, torch

# Names, formats of the struct module, and bytes.
TYPES = (("bool", "?", 1), ("int8", "b", 1), ("uint8", "B", 1), ("int16", "h", 2), ("uint16", "H", 2), ("int32", "i", 4),
         ("uint32", "I", 4), ("int64", "l", 8), ("uint64", "L", 8), ("float16", "e", 2), ("float32", "f", 4), ("float64", "d", 8),
         ("complex64", "Zf", 8), ("complex128", "Zd", 16))


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    """DLTensor, by the specification and not by the module's header."""
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned"""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def versioned_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return Versioned.from_address(get(capsule, b"dltensor_versioned"))


class Protocols(scene.Scene):
    def tearDown(self):
        gc.collect()

    def test_a_memoryview_keeps_the_memory_and_close_is_refused_meanwhile(self):
        buffer = self.host.acquire(1000)
        memory = memoryview(buffer)
        self.assertEqual((memory.nbytes, memory.format, memory.readonly, memory.shape), (1000, "B", False, (1000,)))
        with self.assertRaisesRegex(BufferError, "1 export,"):
            buffer.close()
        memory[:3] = b"abc"
        address = buffer.ptr
        del buffer
        gc.collect()
        self.assertEqual(bytes(memory[:3]), b"abc")
        self.assertEqual(ctypes.string_at(address, 3), b"abc")
        buffer = memory.obj
        memory.release()
        buffer.close()
        with self.assertRaises(ValueError):
            memoryview(buffer)

    def test_views_have_a_shape_and_a_type(self):
        buffer = self.host.acquire(96)
        for name, code, size in TYPES:
            view = buffer.view(dtype=name)
            self.assertEqual((view.shape, view.dtype, view.itemsize, view.nbytes, view.ndim), ((96 // size,), name, size, 96, 1))
            memory = memoryview(view)
            self.assertEqual((memory.format, memory.itemsize, memory.shape), (code, size, view.shape))
        view = buffer.view((2, 3), "int32", offset=8)
        self.assertEqual((view.shape, view.nbytes, view.ptr, view.buffer, view.device), ((2, 3), 24, buffer.ptr + 8, buffer, None))
        self.assertEqual(memoryview(view).strides, (12, 4))
        self.assertEqual(buffer.view((2, -1), "float64").shape, (2, 6))
        self.assertEqual(buffer.view((), "float64").nbytes, 8)
        self.assertEqual(buffer.view(0).nbytes, 0)
        self.assertEqual(buffer.view(5).shape, (5,))
        self.assertIn("float64", repr(buffer.view(dtype=float)))

    def test_views_that_do_not_fit_are_refused(self):
        buffer = self.host.acquire(100)
        for error, arguments in ((ValueError, (101,)), (ValueError, (25, "float64")), (ValueError, (None, "float64")),
                                 (ValueError, ((-1, -1),)), (ValueError, (-2,)), (ValueError, ((1,) * 65,)), (TypeError, ("ab",)),
                                 (TypeError, (1.5,)), (TypeError, (1, "float128")), (TypeError, (1, object)), (TypeError, (1, ">f4")),
                                 (ValueError, (1, "float32", 2)), (ValueError, (1, "uint8", 101)), (ValueError, (1, "uint8", -1)),
                                 (ValueError, ((1 << 40, 1 << 40),)), (OverflowError, (1 << 70,)), (ValueError, ((-1, 0),))):
            with self.assertRaises(error, msg=str(arguments)):
                buffer.view(*arguments)

    def test_a_view_is_stale_when_its_buffer_is_closed(self):
        buffer = self.host.acquire(100)
        view = buffer.view()
        buffer.close()
        self.assertEqual(view.shape, (100,))
        for use in (lambda: memoryview(view), lambda: view.ptr, view.__dlpack__, view.__dlpack_device__, buffer.view,
                    lambda: view.__cuda_array_interface__):
            with self.assertRaises(gpupool.StaleError):
                use()

    def test_device_memory_of_a_simulated_gpu_is_memory_of_the_host(self):
        buffer = self.device.acquire(64)
        memoryview(buffer)[:] = bytes(range(64))
        self.assertEqual(buffer.__dlpack_device__(), (1, 0))
        self.assertEqual(buffer.view(dtype="uint8").device, 0)
        self.assertFalse(hasattr(buffer, "__cuda_array_interface__"))
        self.assertFalse(hasattr(self.host.acquire(1).view(), "__cuda_array_interface__"))

    def test_the_versioned_capsule_is_as_the_specification_says(self):
        buffer = self.host.acquire(240)
        capsule = buffer.view((3, 2, 5), "float64").__dlpack__(max_version=(1, 0))
        found = versioned_of(capsule)
        tensor = found.tensor
        self.assertEqual((found.major, found.flags, tensor.data, tensor.device.type, tensor.device.id, tensor.ndim),
                         (1, 0, buffer.ptr, 1, 0, 3))
        self.assertEqual((tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset), (2, 64, 1, 0))
        self.assertEqual((tensor.shape[:3], tensor.strides[:3]), ([3, 2, 5], [10, 5, 1]))
        with self.assertRaises(BufferError):
            buffer.close()
        del capsule, found, tensor
        buffer.close()

    def test_capsules_are_versioned_for_consumers_that_ask(self):
        view = self.host.acquire(8).view()
        for version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((2, 3), "dltensor_versioned")):
            self.assertIn(f'"{name}"', repr(view.__dlpack__(max_version=version)))
        for error, keywords in ((TypeError, {"max_version": 1}), (TypeError, {"max_version": (1,)}), (ValueError, {"stream": 1}),
                                (BufferError, {"dl_device": (2, 0)}), (BufferError, {"dl_device": (1, 1)}),
                                (TypeError, {"dl_device": 1}), (TypeError, {"unknown": 1})):
            with self.assertRaises(error, msg=str(keywords)):
                view.__dlpack__(**keywords)
        view.__dlpack__(stream=-1, dl_device=(1, 0), copy=False)

    def test_a_copy_is_another_memory_and_says_so(self):
        for pool in (self.host, self.device):
            buffer = pool.acquire(16)
            memoryview(buffer)[:] = bytes(range(16))
            capsule = buffer.view(8, offset=4).__dlpack__(max_version=(1, 0), copy=True)
            found = versioned_of(capsule)
            self.assertEqual(found.flags, 2)
            self.assertNotEqual(found.tensor.data, buffer.ptr + 4)
            self.assertEqual(ctypes.string_at(found.tensor.data, 8), bytes(range(4, 12)))
            buffer.close()
            self.assertEqual(ctypes.string_at(found.tensor.data, 8), bytes(range(4, 12)))

    def test_bfloat16_has_dlpack_alone(self):
        view = self.host.acquire(8).view(dtype="bfloat16")
        self.assertEqual(view.shape, (4,))
        found = versioned_of(view.__dlpack__(max_version=(1, 0)))
        self.assertEqual((found.tensor.code, found.tensor.bits), (4, 16))
        with self.assertRaisesRegex(BufferError, "bfloat16"):
            memoryview(view)
        if numpy is not None:
            with self.assertRaisesRegex(BufferError, "bfloat16"):
                numpy.asarray(view)

    @needs_numpy
    def test_numpy_uses_the_memory_without_a_copy(self):
        buffer = self.host.acquire(24)
        array = numpy.asarray(buffer.view((2, 3), "float32"))
        self.assertEqual((array.shape, array.dtype, array.ctypes.data), ((2, 3), numpy.float32, buffer.ptr))
        array[:] = numpy.arange(6).reshape(2, 3)
        self.assertEqual(numpy.frombuffer(buffer, "f4").tolist(), [0, 1, 2, 3, 4, 5])
        self.assertEqual(numpy.from_dlpack(buffer.view((2, 3), numpy.float32))[1, 2], 5)
        for name, _, size in TYPES:
            found = numpy.asarray(self.host.acquire(2 * size).view(dtype=name))
            self.assertEqual((found.dtype, found.dtype.type, found.shape), (numpy.dtype(name), numpy.dtype(name).type, (2,)))
            self.assertEqual(self.host.acquire(size).view(dtype=found.dtype).dtype, name)
            self.assertEqual(self.host.acquire(size).view(dtype=found.dtype.type).dtype, name)
        with self.assertRaises(TypeError):
            buffer.view(dtype=numpy.dtype(">f4"))
        self.assertTrue(numpy.shares_memory(buffer.view((2, 3), "float32").__array__(), array))
        self.assertFalse(numpy.shares_memory(buffer.__array__(copy=True), array))
        self.assertEqual(buffer.view((2, 3), "float32").__array__("f8").dtype, numpy.float64)
        with self.assertRaises(BufferError):
            buffer.close()
        del found, array
        buffer.close()
        with self.assertRaises(gpupool.StaleError):
            numpy.asarray(buffer)

    @needs_numpy
    def test_empty_makes_arrays_of_numpy(self):
        for shape, dtype, expected in ((5, None, "f8"), ((2, 3), "int16", "i2"), ((), numpy.complex64, "c8"), ((0, 4), "f4", "f4"),
                                       ([4], numpy.dtype([("a", "i4"), ("b", "f8")]), "V12"), ((3, 2), ">i4", ">i4")):
            array = self.host.empty(shape) if dtype is None else self.host.empty(shape, dtype)
            reference = numpy.empty(shape) if dtype is None else numpy.empty(shape, dtype)
            self.assertEqual((type(array), array.shape, array.dtype), (numpy.ndarray, reference.shape, reference.dtype))
            if array.size > 0:
                self.assertEqual(array.strides, reference.strides)
            self.assertEqual(array.dtype.str.lstrip("<|"), expected)
            self.assertTrue(array.flags.c_contiguous and array.flags.writeable and array.flags.aligned)
            array[...] = numpy.zeros((), array.dtype)
            self.assertIsInstance(array.base, gpupool.Buffer)
            with self.assertRaises(BufferError):
                array.base.close()
        for error, arguments in ((ValueError, (-1,)), (TypeError, (2, object)), (TypeError, (2, "no type")), (TypeError, ("shape",)),
                                 (ValueError, ((1 << 40, 1 << 40),)), (TypeError, (1, "V0")), (MemoryError, (1 << 57,))):
            with self.assertRaises(error, msg=str(arguments)):
                self.host.empty(*arguments)

    @needs_numpy
    def test_memory_goes_back_with_the_last_view_of_an_array(self):
        array = self.host.empty(1 << 20, "u1")
        address, part = array.ctypes.data, array[10:20].reshape(2, 5)
        array[10:20] = range(10)
        base = array.base
        del array
        gc.collect()
        self.assertFalse(base.closed)
        del base
        self.assertEqual(part.tolist(), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
        del part
        self.assertEqual(self.host.empty(1 << 20, "u1").ctypes.data, address)

    @needs_torch
    def test_pytorch_uses_the_memory_without_a_copy(self):
        buffer = self.host.acquire(24)
        tensor = torch.from_dlpack(buffer.view((2, 3), torch.float32))
        self.assertEqual((tensor.shape, tensor.dtype, tensor.data_ptr()), ((2, 3), torch.float32, buffer.ptr))
        tensor.copy_(torch.arange(6).reshape(2, 3))
        self.assertEqual(memoryview(buffer.view(6, "float32")).tolist(), [0, 1, 2, 3, 4, 5])
        self.assertEqual(torch.from_dlpack(buffer).dtype, torch.uint8)
        with self.assertRaises(BufferError):
            buffer.close()
        other = tensor + 1
        del tensor
        gc.collect()
        buffer.close()
        self.assertEqual(other[1, 2], 6)
        for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.complex64):
            self.assertEqual(torch.from_dlpack(self.device.acquire(64).view(dtype=dtype)).dtype, dtype)

    @needs_torch
    def test_a_tensor_outlives_the_buffer_object(self):
        tensor = torch.from_dlpack(self.host.acquire(4096).view(dtype="int64"))
        tensor.fill_(7)
        gc.collect()
        others = [self.host.acquire(4096, zero=True) for _ in range(10)]
        self.assertEqual(tensor.sum(), 7 * 512)
        del others


if __name__ == "__main__":
    unittest.main()
