"""The C++ kernel: its build (`build`), the library opened once (`library`) and called (`call`, `interface`)."""
