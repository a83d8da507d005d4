# Make this checkout runnable on a machine with a GPU and no package index. To be sourced:
#
#   . tools/gpu_box.sh [SITE]
#
# Third-party wheels that the machine lacks are taken from .whl/, one version of each. The code runs
# from the checkout; with wheels of NInfer in dist/ (tools/build_wheels.py) and NINFER_WHEELS=1 it
# runs from those instead. SITE holds what is installed; nothing else is touched.

ninfer_site="${1:-${NINFER_CACHE_DIR:-$HOME/.cache/ninfer}/site}"
ninfer_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

ninfer_wheels() {
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$ninfer_site" "$@"
}

ninfer_prepare() {
    mkdir -p "$ninfer_site" || return
    if compgen -G "$ninfer_root/.whl/*.whl" > /dev/null; then
        ninfer_wheels "$ninfer_root"/.whl/*.whl || return
    fi
    if [ "${NINFER_WHEELS:-0}" = 1 ]; then
        ninfer_wheels "$ninfer_root"/dist/*.whl || return
        PYTHONPATH="$ninfer_site"
    else
        PYTHONPATH="$(python3 "$ninfer_root/tools/link_checkout.py" "$ninfer_site")" || return
    fi
    PATH="$ninfer_site/bin:$PATH"
    export PYTHONPATH PATH PYTHONUNBUFFERED=1
    ninfer plugins
}

ninfer_prepare
