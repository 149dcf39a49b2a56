"""How each picture looks, part by part: what it is, and its properties in alphabetical order, as ``look.py`` tells them."""

from __future__ import annotations


def _lines(text: str) -> list[str]:
    """Join what goes on in the next line, a step further in."""
    lines = list[str]()
    for line in text.strip("\n").split("\n"):
        if line.startswith(12 * " "):
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
    return lines


LOOKS = {
    "access": _lines(
        r"""
        whole: bargap=0 barmode=overlay height=695 margin.l=44 margin.t=107 showlegend=True
        xaxis: anchor=y domain=[0 1] range=[-0.5 140.5] visible=False
        xaxis2: anchor=y2 domain=[0 1] range=[-0.7 31.7] showgrid=False title.standoff=4 title.text=bank
        yaxis: anchor=x domain=[0.46 0.985] range=[-8 0.1] visible=False
        yaxis2: anchor=x2 domain=[0 0.345] range=[0 4.32] title.standoff=4 title.text=words
        note: align=left text=Device memory: each frame is a sector of 32 bytes that is moved; what the lanes use is filled x=0
            xanchor=left xref=paper y=0.995 yanchor=bottom yref=paper
        note: align=left text=Shared memory: words of 4 bytes that each bank must deliver; those over the first make it wait x=0
            xanchor=left xref=paper y=0.355 yanchor=bottom yref=paper
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.22) line.width=1 showlegend=False
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.dash=dot line.width=1.5 name=moved
        scatter lines: fill=toself fillcolor=rgba(86,180,233,0.5) hoverinfo=skip line.color=#0072B2 line.width=1 name=used
        scatter text: showlegend=False text=[0 1] textfont.size=10 x=[2 38] y=[-0.75 -0.75]
        scatter text: hoverinfo=skip showlegend=False text=[byte 0 byte 128] textfont.size=10 textposition=middle right x=[0 36]
            y=[-0.26 -0.26]
        bar: base=[0] constraintext=none insidetextanchor=middle marker.color=rgba(86,180,233,0.5) marker.line.color=#0072B2
            marker.line.width=1 marker.pattern.fgcolor=#0072B2 marker.pattern.size=6 marker.pattern.solidity=0.15 name=first word of a
            bank text=[0] textangle=0 textfont.size=9 textposition=inside width=0.86 x=[0] xaxis=x2 y=[1] yaxis=y2
        bar: base=[1] constraintext=none insidetextanchor=middle marker.color=rgba(230,159,0,0.5) marker.line.color=#E69F00
            marker.line.width=1 marker.pattern.fgcolor=#E69F00 marker.pattern.shape=/ marker.pattern.size=6 marker.pattern.solidity=0.15
            name=one more wavefront text=[1] textangle=0 textfont.size=9 textposition=inside width=0.86 x=[0] xaxis=x2 y=[1] yaxis=y2
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.width=1.5 name=one word a bank: no conflict x=[-0.7 32]
            xaxis=x2 y=[1 1] yaxis=y2
        """
    ),
    "bandwidth": _lines(
        r"""
        whole: height=440 margin.t=108 showlegend=True
        xaxis: range=[3.787 6.147] title.standoff=10 title.text=working set (log scale)
        yaxis: range=[9.834 10.8] title.standoff=10 title.text=rate (log scale)
        note: text=L1d 32.0 KiB (the system says) x=4.515 xanchor=center xref=x xshift=0 y=1 yanchor=bottom yref=paper yshift=0
        note: text=L2 64.0 KiB (the system says) x=4.816 xanchor=center xref=x xshift=0 y=1 yanchor=bottom yref=paper yshift=16
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=3.277e+04 x1=3.277e+04 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=6.554e+04 x1=6.554e+04 xref=x y0=0 y1=1 yref=paper
        scatter lines: hoverinfo=skip line.color=#0072B2 line.dash=solid line.width=1.5 name=fastest sample, A CPU opacity=0.6 x=[8192
            1048576] y=[4.8e+10 1.2e+10]
        scatter markers: error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=3 marker.color=#0072B2 marker.line.width=2
            marker.size=8 marker.symbol=circle name=median and 95 % interval, A CPU (measured) x=[8192 1048576] y=[4e+10 1e+10]
        """
    ),
    "break even: late": _lines(
        r"""
        whole: height=380
        xaxis: range=[1.686 2.227] title.standoff=10 title.text=size n (log scale)
        yaxis: range=[-4.12 -2.977] title.standoff=10 title.text=time per call (log scale)
        note: text=break-even: n = 127 x=2.104 xanchor=right xref=x xshift=-5 y=1 yanchor=top yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=127 x1=127 xref=x y0=0 y1=1 yref=paper
        scatter lines+markers: hovertemplate=CPU, n = %{x:d}: %{customdata} line.color=#0072B2 line.dash=solid line.width=2
            marker.color=#0072B2 marker.line.width=2 marker.size=8 marker.symbol=circle name=CPU (measured) x=[64 128] y=[0.0001 0.0008]
        scatter lines+markers: hovertemplate=accelerator with both copies, n = %{x:d}: %{customdata} line.color=#D55E00 line.dash=dash
            line.width=2 marker.color=#D55E00 marker.line.width=2 marker.size=8 marker.symbol=circle-open name=accelerator with both
            copies (modelled) x=[64 128] y=[0.0002 0.0003]
        """
    ),
    "break even: none": _lines(
        r"""
        whole: height=380
        xaxis: range=[1.686 2.227] title.standoff=10 title.text=size n (log scale)
        yaxis: range=[-4.12 -2.977] title.standoff=10 title.text=time per call (log scale)
        note: text=found x=0.01 xanchor=left xref=paper y=0.99 yanchor=top yref=paper
        scatter lines+markers: hovertemplate=CPU, n = %{x:d}: %{customdata} line.color=#0072B2 line.dash=solid line.width=2
            marker.color=#0072B2 marker.line.width=2 marker.size=8 marker.symbol=circle name=CPU (measured) x=[64 128] y=[0.0001 0.0008]
        scatter lines+markers: hovertemplate=accelerator with both copies, n = %{x:d}: %{customdata} line.color=#D55E00 line.dash=dash
            line.width=2 marker.color=#D55E00 marker.line.width=2 marker.size=8 marker.symbol=circle-open name=accelerator with both
            copies (modelled) x=[64 128] y=[0.0002 0.0003]
        """
    ),
    "class_predictions": _lines(
        r"""
        whole: height=202 margin.r=110
        xaxis: range=[-1.12 1.12] title=predicted / measured (log scale; a row's band counts as close)
        yaxis: range=[0.4 2.6]
        note: font.size=11 text=0 of 2 x=1 xanchor=left xref=paper xshift=8 y=2
        note: font.size=11 text=0 of 2 x=1 xanchor=left xref=paper xshift=8 y=1
        note: font.size=11 text=close or right x=1 xanchor=left xref=paper xshift=8 y=1 yanchor=bottom yref=paper
        shape: fillcolor=rgba(127,127,127,0.15) layer=below line.width=0 x0=0.3333 x1=3 y0=1.55 y1=2.45
        shape: fillcolor=rgba(127,127,127,0.15) layer=below line.width=0 x0=0.7692 x1=1.3 y0=0.55 y1=1.45
        shape: line.color=#7C7C7C line.width=1 x0=1 x1=1 y0=0 y1=1 yref=paper
        scatter markers: cliponaxis=False marker.color=#E69F00 marker.line.width=2 marker.size=7 marker.symbol=circle-open opacity=0.8
            showlegend=False x=[0.1 0.1 1.5 1.5] y=[1.75 2.1 0.9 1.25]
        """
    ),
    "class_roofline": _lines(
        r"""
        whole: height=460 showlegend=True
        xaxis: range=[-0.421 1.722] title=arithmetic intensity, FLOP a byte (log scale)
        yaxis: range=[9.579 11.12] title=FLOP a second, float32 (log scale)
        scatter lines: hoverinfo=skip line.color=#0072B2 line.dash=dot line.width=1.2 name=roofs of 1 CPU (recorded) opacity=0.75 x=[0.5
            10 40 None] y=[5e+09 1e+11 1e+11 None]
        scatter markers: cliponaxis=False marker.color=#0072B2 marker.line.width=2 marker.size=9 marker.symbol=circle-open name=their
            ridges (CPU) x=[10] y=[1e+11]
        scatter lines: hoverinfo=skip line.color=#D55E00 line.dash=dot line.width=1.2 name=roofs of 1 GPU (recorded) opacity=0.75 x=[0.5
            2 40 None] y=[2.5e+10 1e+11 1e+11 None]
        scatter markers: cliponaxis=False marker.color=#D55E00 marker.line.width=2 marker.size=9 marker.symbol=circle-open name=their
            ridges (GPU) x=[2] y=[1e+11]
        """
    ),
    "collectives": _lines(
        r"""
        whole: height=490 margin.t=106 showlegend=True
        xaxis: range=[3.414 7.122] title=payload: the whole tensor (log scale)
        yaxis: range=[6.886 9.106] title=bus bandwidth (log scale)
        note: text=link 50.0 MB/s x=0.01 xanchor=left xref=paper y=7.699 yanchor=bottom yref=y
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0 x1=1 xref=paper y0=5e+07 y1=5e+07 yref=y
        scatter lines: hoverinfo=skip line.color=#E69F00 line.dash=dash line.width=2 name=ring, as gloo does it (modelled)
        scatter lines: hoverinfo=skip line.color=#CC79A7 line.dash=dash line.width=2 name=tree (modelled)
        scatter lines: hoverinfo=skip line.color=#009E73 line.dash=dash line.width=2 name=recursive doubling (modelled)
        scatter lines: hoverinfo=skip line.color=#56B4E9 line.dash=dash line.width=2 name=halving and doubling (modelled)
        scatter lines: hoverinfo=skip line.color=#8A8A8A line.dash=dash line.width=2 name=direct (modelled)
        scatter lines+markers: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=4 line.color=#0072B2
            line.dash=solid line.width=1.5 marker.color=#0072B2 marker.line.width=2 marker.size=9 marker.symbol=circle name=all_reduce
            among 4 ranks, links of 50.0 MB/s (measured) x=[4096 65536 1048576 8388608] y=[1.014e+07 1.408e+08 7.239e+08 9.545e+08]
        """
    ),
    "comparison": _lines(
        r"""
        whole: height=332 legend.y=1 margin.b=50 margin.r=120 margin.t=96
        xaxis: range=[-3.421 -1.403] title.standoff=10 title.text=time per call (log scale)
        yaxis: range=[2.5 -0.5] showgrid=False
        note: align=left text=10.0x [9.00x, 11.0x] x=1 xanchor=left xref=paper xshift=8 y=1 yanchor=middle yref=y
        note: align=left text=speed-up x=1 xanchor=left xref=paper xshift=8 y=1 yanchor=bottom yref=paper
        scatter markers: marker.color=#8A8A8A marker.line.width=2 marker.size=11 marker.symbol=line-ns name=call returned x=[None]
            y=[None]
        scatter markers: marker.color=#8A8A8A marker.line.width=2 marker.size=11 marker.symbol=circle name=device finished (median, 95 %
            interval) x=[None] y=[None]
        scatter markers: marker.color=#8A8A8A marker.line.width=2 marker.size=11 marker.symbol=diamond name=with both copies x=[None]
            y=[None]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[0.005 0.01 0.03] y=[0 0 0]
        scatter markers: hovertemplate=call returned: 5.00 ms marker.color=#0072B2 marker.line.width=2 marker.size=14
            marker.symbol=line-ns showlegend=False x=[0.005] y=[-0.2]
        scatter markers: error_x.color=#0072B2 error_x.thickness=2 error_x.width=7 hovertemplate=device finished: 10.0 ms
            marker.color=#0072B2 marker.line.width=2 marker.size=11 marker.symbol=circle showlegend=False x=[0.01] y=[0]
        scatter markers: hovertemplate=with both copies: 30.0 ms marker.color=#0072B2 marker.line.width=2 marker.size=11
            marker.symbol=diamond showlegend=False x=[0.03] y=[0.2]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[0.0005 0.001 0.003] y=[1 1 1]
        scatter markers: hovertemplate=call returned: 500 us marker.color=#D55E00 marker.line.width=2 marker.size=14
            marker.symbol=line-ns showlegend=False x=[0.0005] y=[0.8]
        scatter markers: error_x.color=#D55E00 error_x.thickness=2 error_x.width=7 hovertemplate=device finished: 1.00 ms
            marker.color=#D55E00 marker.line.width=2 marker.size=11 marker.symbol=circle showlegend=False x=[0.001] y=[1]
        scatter markers: hovertemplate=with both copies: 3.00 ms marker.color=#D55E00 marker.line.width=2 marker.size=11
            marker.symbol=diamond showlegend=False x=[0.003] y=[1.2]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[0.001 0.002 0.006] y=[2 2 2]
        scatter markers: hovertemplate=call returned: 1.00 ms marker.color=#D55E00 marker.line.width=2 marker.size=14
            marker.symbol=line-ns-open showlegend=False x=[0.001] y=[1.8]
        scatter markers: error_x.color=#D55E00 error_x.thickness=2 error_x.width=7 hovertemplate=device finished: 2.00 ms
            marker.color=#D55E00 marker.line.width=2 marker.size=11 marker.symbol=circle-open showlegend=False x=[0.002] y=[2]
        scatter markers: hovertemplate=with both copies: 6.00 ms marker.color=#D55E00 marker.line.width=2 marker.size=11
            marker.symbol=diamond-open showlegend=False x=[0.006] y=[2.2]
        """
    ),
    "diet": _lines(
        r"""
        whole: height=420
        xaxis: domain=[0 0.46] range=[3.88 4.953] title=file on disk (log scale)
        xaxis2: anchor=y2 domain=[0.56 1] range=[-0.1657 0.1658] title=time of the first model = 1 (log scale)
        yaxis: range=[89.5 100.5] title=right answers on the test (%)
        yaxis2: anchor=x2 matches=y range=[89.5 100.5] showticklabels=True title=
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=1 x1=1 xref=x2 y0=0 y1=1 yref=y2 domain
        scatter lines: hoverinfo=skip line.color=#8A8A8A line.dash=dot line.width=1.5 name=beaten by none showlegend=True x=[10000
            68000] xaxis=x y=[96 98] yaxis=y
        scatter markers+text: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1 error_y.width=3 marker.color=#0072B2
            marker.line.width=2 marker.size=9 marker.symbol=circle name=a model, numbered as in the table showlegend=True text=[1 2, 3 ]
            textfont.size=12 textposition=top right x=[68000 10000 10100] xaxis=x y=[98 96 95.8] yaxis=y
        scatter lines: hoverinfo=skip line.color=#8A8A8A line.dash=dot line.width=1.5 name=beaten by none showlegend=False x=[0.9901 1]
            xaxis=x2 y=[95.8 98] yaxis=y2
        scatter markers+text: cliponaxis=False error_x.color=#0072B2 error_x.thickness=1 error_x.width=3 error_y.color=#0072B2
            error_y.thickness=1 error_y.width=3 marker.color=#0072B2 marker.line.width=2 marker.size=9 marker.symbol=circle name=a
            model, numbered as in the table showlegend=False text=[1 2, 3 ] textfont.size=12 textposition=top right x=[1 1 0.9901]
            xaxis=x2 y=[98 96 95.8] yaxis=y2
        """
    ),
    "global batch": _lines(
        r"""
        whole: height=440
        xaxis: range=[1.084 1.625] tickangle=0 title=global batch = ranks x 16 (log scale)
        yaxis: range=[0 104] title=right answers on the test (%)
        scatter lines+markers: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=4 line.color=#0072B2
            line.dash=solid line.width=1.5 marker.color=#0072B2 marker.line.width=2 marker.size=10 marker.symbol=circle name=learning
            rate unchanged x=[15.53 31.07] y=[90 90]
        scatter lines+markers: cliponaxis=False error_y.color=#D55E00 error_y.thickness=1.5 error_y.width=4 line.color=#D55E00
            line.dash=dash line.width=1.5 marker.color=#D55E00 marker.line.width=2 marker.size=10 marker.symbol=square name=learning
            rate linear x=[16 32] y=[90 90]
        scatter lines+markers: cliponaxis=False error_y.color=#009E73 error_y.thickness=1.5 error_y.width=4 line.color=#009E73
            line.dash=dot line.width=1.5 marker.color=#009E73 marker.line.width=2 marker.size=10 marker.symbol=diamond name=learning
            rate linear with warm-up x=[16.48 32.96] y=[90 90]
        """
    ),
    "gradient window": _lines(
        r"""
        whole: bargap=0.08 barmode=overlay height=400 showlegend=True
        xaxis: range=[-39 19] title=size of a gradient, times the scale
        yaxis: nticks=6 range=[0 0.32] tickformat=.0% title=share of gradients
        note: text=zero below x=-25 xanchor=left xref=x xshift=4 y=1 yanchor=top yref=paper
        note: text=full digits from here x=-14 xanchor=left xref=x xshift=4 y=0.925 yanchor=top yref=paper
        note: text=overflow from here x=16 xanchor=right xref=x xshift=-4 y=0.85 yanchor=top yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=-25 x1=-25 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=-14 x1=-14 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=16 x1=16 xref=x y0=0 y1=1 yref=paper
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: becomes zero marker.color=rgba(0,0,0,0)
            marker.line.color=#D55E00 marker.line.width=1.5 marker.pattern.fgcolor=#D55E00 marker.pattern.fillmode=replace
            marker.pattern.shape=x marker.pattern.size=6 name=becomes zero width=0.92 x=[-36.5] y=[0.25]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: subnormal: fewer digits
            marker.color=rgba(0,0,0,0) marker.line.color=#E69F00 marker.line.width=1.5 marker.pattern.fgcolor=#E69F00
            marker.pattern.fillmode=replace marker.pattern.shape=/ marker.pattern.size=6 name=subnormal: fewer digits width=0.92
            x=[-16.5] y=[0.25]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: normal: all digits marker.color=#009E73
            marker.line.width=1.5 marker.pattern.fgcolor=#009E73 marker.pattern.fillmode=replace marker.pattern.size=6 name=normal: all
            digits width=0.92 x=[3.5] y=[0.25]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: beyond the largest marker.color=rgba(0,0,0,0)
            marker.line.color=#CC79A7 marker.line.width=1.5 marker.pattern.fgcolor=#CC79A7 marker.pattern.fillmode=replace
            marker.pattern.shape=. marker.pattern.size=6 name=beyond the largest width=0.92 x=[17.5] y=[0.25]
        """
    ),
    "gradient window: narrow": _lines(
        r"""
        whole: bargap=0.08 barmode=overlay height=400 showlegend=True
        xaxis: range=[-20 19] title=size of a gradient, times the scale
        yaxis: nticks=6 range=[0 0.8533] tickformat=.0% title=share of gradients
        note: text=zero below x=-17 xanchor=left xref=x xshift=4 y=1 yanchor=top yref=paper
        note: text=full digits from here x=-14 xanchor=left xref=x xshift=4 y=0.925 yanchor=top yref=paper
        note: text=overflow from here x=16 xanchor=right xref=x xshift=-4 y=0.85 yanchor=top yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=-17 x1=-17 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=-14 x1=-14 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=16 x1=16 xref=x y0=0 y1=1 yref=paper
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: becomes zero marker.color=rgba(0,0,0,0)
            marker.line.color=#D55E00 marker.line.width=1.5 marker.pattern.fgcolor=#D55E00 marker.pattern.fillmode=replace
            marker.pattern.shape=x marker.pattern.size=6 name=becomes zero width=0.92 x=[] y=[]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: subnormal: fewer digits
            marker.color=rgba(0,0,0,0) marker.line.color=#E69F00 marker.line.width=1.5 marker.pattern.fgcolor=#E69F00
            marker.pattern.fillmode=replace marker.pattern.shape=/ marker.pattern.size=6 name=subnormal: fewer digits width=0.92 x=[]
            y=[]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: normal: all digits marker.color=#009E73
            marker.line.width=1.5 marker.pattern.fgcolor=#009E73 marker.pattern.fillmode=replace marker.pattern.size=6 name=normal: all
            digits width=0.92 x=[0.5 1.5] y=[0.6667 0.3333]
        bar: hovertemplate=%{y:.2%} of the gradients, from %{customdata} before scaling: beyond the largest marker.color=rgba(0,0,0,0)
            marker.line.color=#CC79A7 marker.line.width=1.5 marker.pattern.fgcolor=#CC79A7 marker.pattern.fillmode=replace
            marker.pattern.shape=. marker.pattern.size=6 name=beyond the largest width=0.92 x=[] y=[]
        """
    ),
    "ladder": _lines(
        r"""
        whole: height=272 legend.traceorder=normal
        xaxis: range=[-0.2169 0.4624] title=times as fast
        yaxis: range=[3 -0.6] showgrid=False
        note: text=no gain x=0 xanchor=left xref=x xshift=5 y=0 yanchor=bottom yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=1 x1=1 xref=x y0=0 y1=1 yref=paper
        scatter markers: error_x.color=#0072B2 error_x.thickness=1.5 error_x.width=5 marker.color=#0072B2 marker.line.width=2
            marker.size=9 marker.symbol=circle name=alone, over the script x=[2 1.5 1.1] y=[-0.22 0.78 1.78]
        scatter markers: error_x.color=#E69F00 error_x.thickness=1.5 error_x.width=5 marker.color=#E69F00 marker.line.width=2
            marker.size=9 marker.symbol=square name=at its place, over the rung before x=[2 0.9 1.06] y=[0 1 2]
        scatter markers: error_x.color=#D55E00 error_x.thickness=1.5 error_x.width=5 marker.color=#D55E00 marker.line.width=2
            marker.size=9 marker.symbol=diamond name=at the end: all over all but it x=[1.2 0.9 1.05] y=[0.22 1.22 2.22]
        """
    ),
    "ladder: cut": _lines(
        r"""
        whole: legend.traceorder=normal
        xaxis: range=[-0.12 1.458] title=times as fast as the script
        yaxis: range=[5 -0.6] showgrid=False
        note: text=the script x=0 xanchor=left xref=x xshift=5 y=0 yanchor=bottom yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=1 x1=1 xref=x y0=0 y1=1 yref=paper
        scatter lines: hovertemplate=%{hovertext} hovertext=[first: 2.00x [1.80x, 2.20x] over the rung before first: 2.00x [1.80x,
            2.20x] over the rung before] line.color=#009E73 line.width=14 opacity=0.55 showlegend=False x=[1 2] y=[0 0]
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[2.00x, faster] textfont.color=#7C7C7C textfont.size=12
            textposition=middle right x=[10.49] y=[0]
        scatter markers: error_x.color=#009E73 error_x.thickness=1.5 error_x.width=5 hovertemplate=over the script: 2.00x [1.80x, 50.0x]
            marker.color=#009E73 marker.line.width=2 marker.size=8 marker.symbol=circle showlegend=False x=[2] y=[0]
        scatter markers: hoverinfo=skip marker.color=#009E73 marker.size=9 marker.symbol=triangle-right showlegend=False x=[9.9] y=[0]
        scatter lines: hovertemplate=%{hovertext} hovertext=[second: 0.90x [0.85x, 0.95x] over the rung before second: 0.90x [0.85x,
            0.95x] over the rung before] line.color=#CC79A7 line.width=14 opacity=0.55 showlegend=False x=[2 1.8] y=[1 1]
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[0.90x, slower] textfont.color=#7C7C7C textfont.size=12
            textposition=middle right x=[2.12] y=[1]
        scatter markers: error_x.color=#CC79A7 error_x.thickness=1.5 error_x.width=5 hovertemplate=over the script: 1.80x [1.62x, 1.98x]
            marker.color=#CC79A7 marker.line.width=2 marker.size=8 marker.symbol=circle showlegend=False x=[1.8] y=[1]
        scatter lines: hovertemplate=%{hovertext} hovertext=[third: 1.06x [0.90x, 1.20x] over the rung before third: 1.06x [0.90x,
            1.20x] over the rung before] line.color=#8A8A8A line.width=14 opacity=0.55 showlegend=False x=[1.8 1.9] y=[2 2]
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[1.06x, no difference shown] textfont.color=#7C7C7C
            textfont.size=12 textposition=middle right x=[2.215] y=[2]
        scatter markers: error_x.color=#8A8A8A error_x.thickness=1.5 error_x.width=5 hovertemplate=over the script: 1.90x [1.71x, 2.09x]
            marker.color=#8A8A8A marker.line.width=2 marker.size=8 marker.symbol=circle showlegend=False x=[1.9] y=[2]
        scatter lines: hovertemplate=%{hovertext} hovertext=[all together: 1.90x [1.70x, 2.10x] all together: 1.90x [1.70x, 2.10x]]
            line.color=#0072B2 line.width=14 opacity=0.55 showlegend=False x=[1 1.9] y=[3 3]
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[1.90x [1.70x, 2.10x], MEASURED] textfont.color=#7C7C7C
            textfont.size=12 textposition=middle right x=[2.226] y=[3]
        scatter markers: error_x.color=#0072B2 error_x.thickness=1.5 error_x.width=5 hovertemplate=over the script: 1.90x [1.70x, 2.10x]
            marker.color=#0072B2 marker.line.width=2 marker.size=8 marker.symbol=circle showlegend=False x=[1.9] y=[3]
        scatter lines: hoverinfo=skip line.color=#0072B2 line.dash=dash line.width=3 showlegend=False x=[1 3.3] y=[4 4]
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[3.30x [2.50x, 4.00x], MODELLED] textfont.color=#7C7C7C
            textfont.size=12 textposition=middle right x=[4.24] y=[4]
        scatter markers: error_x.color=#0072B2 error_x.thickness=1.5 error_x.width=5 hovertemplate=over the script: 3.30x [2.50x, 4.00x]
            marker.color=#0072B2 marker.line.width=2 marker.size=9 marker.symbol=circle-open showlegend=False x=[3.3] y=[4]
        """
    ),
    "latency": _lines(
        r"""
        whole: height=440 margin.t=108 showlegend=True
        xaxis: range=[3.45 6.484] title.standoff=10 title.text=working set (log scale)
        yaxis: range=[-8.865 -7.538] title.standoff=10 title.text=one hop (log scale)
        note: text=L1d|1.90 ns x=4.064 y=-8.721 yanchor=bottom yshift=8
        note: text=level 2|19.0 ns x=5.569 y=-7.721 yanchor=top yshift=-8
        note: text=L1d 32.0 KiB (the system says) x=4.515 xanchor=center xref=x xshift=0 y=1 yanchor=bottom yref=paper yshift=0
        note: text=L2 64.0 KiB (the system says) x=4.816 xanchor=center xref=x xshift=0 y=1 yanchor=bottom yref=paper yshift=16
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=3.277e+04 x1=3.277e+04 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=6.554e+04 x1=6.554e+04 xref=x y0=0 y1=1 yref=paper
        scatter lines: hoverinfo=skip line.color=#0072B2 line.dash=solid line.width=1.5 name=fastest sample, A CPU opacity=0.6
        scatter markers: error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=3 marker.color=#0072B2 marker.line.width=2
            marker.size=8 marker.symbol=circle name=median and 95 % interval, A CPU (measured)
        """
    ),
    "machine": _lines(
        r"""
        whole: height=300
        xaxis: range=[4.136 12.99] title.standoff=10 title.text=bytes (log scale)
        yaxis: autorange=reversed
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[1.368e+04 32768] y=[CPU L1d CPU
            L1d]
        scatter markers+text: cliponaxis=False hovertemplate=CPU L1d marker.color=#0072B2 marker.line.width=2 marker.size=11
            marker.symbol=circle showlegend=False text=[32.0 KiB x 4] textposition=middle right x=[32768] y=[CPU L1d]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[1.368e+04 8388608] y=[CPU L3
            CPU L3]
        scatter markers+text: cliponaxis=False hovertemplate=CPU L3 marker.color=#0072B2 marker.line.width=2 marker.size=11
            marker.symbol=circle showlegend=False text=[8.00 MiB] textposition=middle right x=[8388608] y=[CPU L3]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[1.368e+04 8589934592] y=[main
            memory main memory]
        scatter markers+text: cliponaxis=False hovertemplate=main memory marker.color=#0072B2 marker.line.width=2 marker.size=11
            marker.symbol=circle showlegend=False text=[8.00 GiB, 2.00 GiB free] textposition=middle right x=[8589934592] y=[main
            memory]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[1.368e+04 33554432] y=[cuda:0
            L2 cuda:0 L2]
        scatter markers+text: cliponaxis=False hovertemplate=cuda:0 L2 marker.color=#D55E00 marker.line.width=2 marker.size=11
            marker.symbol=circle showlegend=False text=[32.0 MiB] textposition=middle right x=[33554432] y=[cuda:0 L2]
        scatter lines: hoverinfo=skip line.color=rgba(127,127,127,0.65) line.width=1 showlegend=False x=[1.368e+04 68719476736]
            y=[cuda:0 memory cuda:0 memory]
        scatter markers+text: cliponaxis=False hovertemplate=cuda:0 memory marker.color=#D55E00 marker.line.width=2 marker.size=11
            marker.symbol=circle showlegend=False text=[64.0 GiB, 32.0 GiB free] textposition=middle right x=[68719476736] y=[cuda:0
            memory]
        """
    ),
    "measurement": _lines(
        r"""
        whole:
        xaxis: title.standoff=10 title.text=sample
        yaxis: range=[0.000884 0.001116] title.standoff=10 title.text=time per call (ms)
        note: text=median 1.00 ms, 95 % interval 950 us to 1.05 ms x=1 xanchor=right xref=paper y=1 yanchor=bottom yref=paper
        shape: fillcolor=#0072B2 line.width=0 opacity=0.18 x0=0 x1=1 xref=paper y0=0.00095 y1=0.00105 yref=y
        shape: line.color=#0072B2 line.dash=solid line.width=2 x0=0 x1=1 xref=paper y0=0.001 y1=0.001 yref=y
        scatter markers: hovertemplate=sample %{x:d}: %{y:.3s}s marker.color=#0072B2 marker.line.width=2 marker.size=6
            marker.symbol=circle showlegend=False
        """
    ),
    "memory prediction": _lines(
        r"""
        whole: barmode=stack height=322 legend.traceorder=normal margin.b=100
        xaxis: range=[0 2.845e+08] title.standoff=10 title.text=bytes
        yaxis: autorange=reversed showgrid=False
        note: text=free: 256 MiB x=268435456 xanchor=right xref=x y=1 yanchor=bottom yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=2 x0=268435456 x1=268435456 xref=x y0=0 y1=1 yref=paper
        bar: hovertemplate=parameters: %{customdata} marker.color=rgba(0,114,178,0.35) marker.line.color=#0072B2 marker.line.width=1.5
            marker.pattern.fgcolor=#0072B2 marker.pattern.shape=/ marker.pattern.size=7 name=parameters orientation=h width=0.6
            x=[6.711e+07 1.342e+08] y=[one two]
        bar: hovertemplate=activations: %{customdata} marker.color=rgba(0,158,115,0.35) marker.line.color=#009E73 marker.line.width=1.5
            marker.pattern.fgcolor=#009E73 marker.pattern.shape=/ marker.pattern.size=7 name=activations orientation=h width=0.6
            x=[3.355e+07 6.711e+07] y=[one two]
        bar: hovertemplate=inside operators: %{customdata} marker.color=rgba(213,94,0,0.35) marker.line.color=#D55E00
            marker.line.width=1.5 marker.pattern.fgcolor=#D55E00 marker.pattern.shape=/ marker.pattern.size=7 name=inside operators
            orientation=h width=0.6 x=[1.049e+06 1.049e+06] y=[one two]
        bar: hovertemplate=margin: %{customdata} marker.color=rgba(138,138,138,0.35) marker.line.color=#8A8A8A marker.line.width=1.5
            marker.pattern.fgcolor=#8A8A8A marker.pattern.shape=/ marker.pattern.size=7 name=margin orientation=h width=0.6 x=[1.573e+07
            3.251e+07] y=[one two]
        """
    ),
    "memory prediction: far": _lines(
        r"""
        whole: barmode=stack height=322 legend.traceorder=normal margin.b=100
        xaxis: range=[0 2.863e+08] title.standoff=10 title.text=bytes
        yaxis: autorange=reversed showgrid=False
        note: text=free: 16.0 GiB, far to the right x=2.701e+08 xanchor=right xref=x y=1 yanchor=bottom yref=paper
        bar: hovertemplate=parameters: %{customdata} marker.color=rgba(0,114,178,0.35) marker.line.color=#0072B2 marker.line.width=1.5
            marker.pattern.fgcolor=#0072B2 marker.pattern.shape=/ marker.pattern.size=7 name=parameters orientation=h width=0.6
            x=[6.711e+07 1.342e+08] y=[one two]
        bar: hovertemplate=activations: %{customdata} marker.color=rgba(0,158,115,0.35) marker.line.color=#009E73 marker.line.width=1.5
            marker.pattern.fgcolor=#009E73 marker.pattern.shape=/ marker.pattern.size=7 name=activations orientation=h width=0.6
            x=[3.355e+07 6.711e+07] y=[one two]
        bar: hovertemplate=inside operators: %{customdata} marker.color=rgba(213,94,0,0.35) marker.line.color=#D55E00
            marker.line.width=1.5 marker.pattern.fgcolor=#D55E00 marker.pattern.shape=/ marker.pattern.size=7 name=inside operators
            orientation=h width=0.6 x=[1.049e+06 1.049e+06] y=[one two]
        bar: hovertemplate=margin: %{customdata} marker.color=rgba(138,138,138,0.35) marker.line.color=#8A8A8A marker.line.width=1.5
            marker.pattern.fgcolor=#8A8A8A marker.pattern.shape=/ marker.pattern.size=7 name=margin orientation=h width=0.6 x=[1.573e+07
            3.251e+07] y=[one two]
        """
    ),
    "memory snapshot": _lines(
        r"""
        whole: barmode=stack height=274 legend.traceorder=normal margin.b=100
        xaxis: range=[0 1.138e+09] title.standoff=10 title.text=bytes
        yaxis: autorange=reversed showgrid=False
        bar: hovertemplate=tensors: %{customdata} marker.color=rgba(0,114,178,0.9) marker.line.color=#0072B2 marker.line.width=1.5
            name=tensors orientation=h width=0.6 x=[5.369e+08] y=[cuda:0]
        bar: hovertemplate=free: %{customdata} marker.color=rgba(200,200,200,0.9) marker.line.color=#C8C8C8 marker.line.width=1.5
            name=free orientation=h width=0.6 x=[5.369e+08] y=[cuda:0]
        """
    ),
    "memory timeline": _lines(
        r"""
        whole: height=400 margin.t=91 showlegend=True
        xaxis: range=[0 99] showgrid=False title.standoff=10 title.text=operator (in the order run)
        yaxis: range=[0 3.206e+07] title.standoff=10 title.text=live bytes
        note: arrowcolor=#7C7C7C arrowhead=0 ax=0 ay=-22 text=peak 25.8 MiB x=99 xanchor=right xref=x y=2.7e+07 yref=y
        note: text=forward x=30 xref=x y=1 yanchor=bottom yref=paper yshift=0
        note: text=loss x=61.5 xref=x y=1 yanchor=bottom yref=paper yshift=15
        note: text=backward x=81.5 xref=x y=1 yanchor=bottom yref=paper yshift=0
        shape: line.color=#7C7C7C line.dash=dot line.width=1 x0=60 x1=60 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dot line.width=1 x0=63 x1=63 xref=x y0=0 y1=1 yref=paper
        scatter lines: fillcolor=rgba(0,114,178,0.75) fillpattern.fgcolor=#0072B2 fillpattern.size=7 line.color=#0072B2 line.shape=hv
            line.width=1 name=parameters stackgroup=bytes
        scatter lines: fillcolor=rgba(0,158,115,0.75) fillpattern.fgcolor=#009E73 fillpattern.size=7 line.color=#009E73 line.shape=hv
            line.width=1 name=activations stackgroup=bytes
        """
    ),
    "number line: 64 bits": _lines(
        r"""
        whole: height=384
        xaxis: anchor=y domain=[0 1] range=[-11.68 63.8] showgrid=False showline=False showticklabels=False
        xaxis2: anchor=y2 nticks=7 range=[0.5 0.5] tickformat=.16~g title=the number line around it
        yaxis: anchor=x domain=[0.56 1] range=[0 1] showgrid=False showline=False showticklabels=False
        yaxis2: anchor=x2 domain=[0 0.44] range=[0 1] showgrid=False showline=False showticklabels=False
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[float64] textposition=middle left x=[-0.8] y=[0.5]
        scatter markers+text: cliponaxis=False hovertemplate=sign 0 legendgroup=sign marker.color=#D55E00 marker.line.width=2
            marker.size=10 marker.symbol=square-open name=sign showlegend=True text=[0] textfont.size=8 textposition=middle center x=[0]
            y=[0.5]
        scatter markers+text: cliponaxis=False hovertemplate=exponent 01111111110 legendgroup=exponent marker.color=#0072B2
            marker.line.width=2 marker.size=10 marker.symbol=square-open name=exponent showlegend=True textfont.size=8
            textposition=middle center
        scatter markers+text: cliponaxis=False hovertemplate=mantissa 0000000000000000000000000000000000000000000000000000
            legendgroup=mantissa marker.color=#009E73 marker.line.width=2 marker.size=10 marker.symbol=square-open name=mantissa
            showlegend=True textfont.size=8 textposition=middle center
        scatter markers: hovertemplate=float64: %{x:.17g} marker.color=#7C7C7C marker.line.width=2 marker.size=10
            marker.symbol=circle-open name=numbers of float64 showlegend=True x=[0.5] xaxis=x2 y=[0.5] yaxis=y2
        scatter markers+text: cliponaxis=False hovertemplate=held: 0.5 legendgroup=held marker.color=#D55E00 marker.line.width=2
            marker.size=13 marker.symbol=circle name=the number held showlegend=True text=[float64 0.5] textposition=bottom right
            x=[0.5] xaxis=x2 y=[0.5] yaxis=y2
        """
    ),
    "number line: beyond": _lines(
        r"""
        whole: height=384
        xaxis: anchor=y domain=[0 1] range=[-3.52 15.8] showgrid=False showline=False showticklabels=False
        xaxis2: anchor=y2 nticks=7 range=[6.496e+04 6.605e+04] tickformat=.6~g title=the number line around it
        yaxis: anchor=x domain=[0.56 1] range=[0 1] showgrid=False showline=False showticklabels=False
        yaxis2: anchor=x2 domain=[0 0.44] range=[0 1] showgrid=False showline=False showticklabels=False
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[float16] textposition=middle left x=[-0.8] y=[0.5]
        scatter markers+text: cliponaxis=False hovertemplate=sign 0 legendgroup=sign marker.color=#D55E00 marker.line.width=2
            marker.size=20 marker.symbol=square-open name=sign showlegend=True text=[0] textfont.size=13 textposition=middle center
            x=[0] y=[0.5]
        scatter markers+text: cliponaxis=False hovertemplate=exponent 11111 legendgroup=exponent marker.color=#0072B2
            marker.line.width=2 marker.size=20 marker.symbol=square-open name=exponent showlegend=True textfont.size=13
            textposition=middle center
        scatter markers+text: cliponaxis=False hovertemplate=mantissa 0000000000 legendgroup=mantissa marker.color=#009E73
            marker.line.width=2 marker.size=20 marker.symbol=square-open name=mantissa showlegend=True textfont.size=13
            textposition=middle center
        scatter markers: hovertemplate=float16: %{x:.17g} marker.color=#7C7C7C marker.line.width=2 marker.size=10
            marker.symbol=circle-open name=numbers of float16 showlegend=True xaxis=x2 yaxis=y2
        scatter text: hoverinfo=skip showlegend=False text=[float16 ends at 65504] textposition=bottom center x=[6.55e+04] xaxis=x2
            y=[0.5] yaxis=y2
        """
    ),
    "number line: two": _lines(
        r"""
        whole: height=468
        xaxis: anchor=y domain=[0 1] range=[-6.24 31.8] showgrid=False showline=False showticklabels=False
        xaxis2: anchor=y2 nticks=7 range=[0.9336 1.066] tickformat=.6~g title=the number line around it
        yaxis: anchor=x domain=[0.56 1] range=[0 1] showgrid=False showline=False showticklabels=False
        yaxis2: anchor=x2 domain=[0 0.44] range=[0 1] showgrid=False showline=False showticklabels=False
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[float32] textposition=middle left x=[-0.8] y=[0.72]
        scatter markers+text: cliponaxis=False hovertemplate=sign 0 legendgroup=sign marker.color=#D55E00 marker.line.width=2
            marker.size=15 marker.symbol=square-open name=sign showlegend=True text=[0] textfont.size=11 textposition=middle center
            x=[0] y=[0.72]
        scatter markers+text: cliponaxis=False hovertemplate=exponent 01111111 legendgroup=exponent marker.color=#0072B2
            marker.line.width=2 marker.size=15 marker.symbol=square-open name=exponent showlegend=True textfont.size=11
            textposition=middle center
        scatter markers+text: cliponaxis=False hovertemplate=mantissa 00000000000000000000000 legendgroup=mantissa marker.color=#009E73
            marker.line.width=2 marker.size=15 marker.symbol=square-open name=mantissa showlegend=True textfont.size=11
            textposition=middle center
        scatter text: cliponaxis=False hoverinfo=skip showlegend=False text=[bfloat16] textposition=middle left x=[-0.8] y=[0.28]
        scatter markers+text: cliponaxis=False hovertemplate=sign 0 legendgroup=sign marker.color=#D55E00 marker.line.width=2
            marker.size=20 marker.symbol=square-open name=sign showlegend=False text=[0] textfont.size=13 textposition=middle center
            x=[0] y=[0.28]
        scatter markers+text: cliponaxis=False hovertemplate=exponent 01111111 legendgroup=exponent marker.color=#0072B2
            marker.line.width=2 marker.size=20 marker.symbol=square-open name=exponent showlegend=False textfont.size=13
            textposition=middle center
        scatter markers+text: cliponaxis=False hovertemplate=mantissa 0000000 legendgroup=mantissa marker.color=#009E73
            marker.line.width=2 marker.size=20 marker.symbol=square-open name=mantissa showlegend=False textfont.size=13
            textposition=middle center
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.width=8 showlegend=False x=[0.9336 1.066] xaxis=x2 y=[0.72 0.72] yaxis=y2
        scatter text: hoverinfo=skip showlegend=False text=[1,671,169 numbers of float32, too close to draw] textposition=middle right
            x=[0.9349] xaxis=x2 y=[0.87] yaxis=y2
        scatter markers+text: cliponaxis=False hovertemplate=held: 1 legendgroup=held marker.color=#D55E00 marker.line.width=2
            marker.size=13 marker.symbol=circle name=the number held showlegend=True text=[float32 1] textposition=bottom right x=[1]
            xaxis=x2 y=[0.72] yaxis=y2
        scatter markers: hovertemplate=bfloat16: %{x:.17g} marker.color=#7C7C7C marker.line.width=2 marker.size=10
            marker.symbol=diamond-open name=numbers of bfloat16 showlegend=True xaxis=x2 yaxis=y2
        scatter markers+text: cliponaxis=False hovertemplate=held: 1 legendgroup=held marker.color=#D55E00 marker.line.width=2
            marker.size=13 marker.symbol=diamond name=the number held showlegend=False text=[bfloat16 1] textposition=bottom right x=[1]
            xaxis=x2 y=[0.28] yaxis=y2
        """
    ),
    "occupancy": _lines(
        r"""
        whole: height=415 margin.t=91
        xaxis: anchor=y domain=[0 0.295] range=[0 1085] title=threads of a block
        xaxis2: anchor=y2 domain=[0.3525 0.6475] range=[0 270.3] title=registers of a thread
        xaxis3: anchor=y3 domain=[0.705 1] range=[0 2.464e+05] title=KiB of shared memory of a block
        yaxis: anchor=x domain=[0 1] range=[-0.04 1.14] title=share of warp slots
        yaxis2: anchor=x2 domain=[0 1] range=[-0.04 1.14]
        yaxis3: anchor=x3 domain=[0 1] range=[-0.04 1.14]
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.shape=vh line.width=1.5 showlegend=False xaxis=x yaxis=y
        scatter markers: hovertemplate=%{customdata}, limited by registers legendgroup=registers marker.color=#E69F00
            marker.line.width=2 marker.size=8 marker.symbol=square-open name=limited by registers showlegend=True xaxis=x yaxis=y
        scatter markers+text: cliponaxis=False hovertemplate=this launch: 256 threads, 50.0% legendgroup=launch legendrank=1
            marker.color=#D55E00 marker.line.width=3 marker.size=17 marker.symbol=circle-open name=this launch showlegend=True
            text=[50.0%] textposition=top center x=[256] xaxis=x y=[0.5] yaxis=y
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.shape=hv line.width=1.5 showlegend=False xaxis=x2 yaxis=y2
        scatter markers: hovertemplate=%{customdata}, limited by warp slots legendgroup=warps marker.color=#009E73 marker.line.width=2
            marker.size=8 marker.symbol=circle-open name=limited by warp slots showlegend=True x=[0] xaxis=x2 y=[1] yaxis=y2
        scatter markers: hovertemplate=%{customdata}, limited by registers legendgroup=registers marker.color=#E69F00
            marker.line.width=2 marker.size=8 marker.symbol=square-open name=limited by registers showlegend=False xaxis=x2 yaxis=y2
        scatter markers+text: cliponaxis=False hovertemplate=this launch: 64 registers, 50.0% legendgroup=launch legendrank=1
            marker.color=#D55E00 marker.line.width=3 marker.size=17 marker.symbol=circle-open name=this launch showlegend=False
            text=[50.0%] textposition=top center x=[64] xaxis=x2 y=[0.5] yaxis=y2
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.shape=hv line.width=1.5 showlegend=False xaxis=x3 yaxis=y3
        scatter markers: hovertemplate=%{customdata}, limited by registers legendgroup=registers marker.color=#E69F00
            marker.line.width=2 marker.size=8 marker.symbol=square-open name=limited by registers showlegend=False x=[0] xaxis=x3
            y=[0.5] yaxis=y3
        scatter markers: hovertemplate=%{customdata}, limited by shared memory legendgroup=shared marker.color=#0072B2
            marker.line.width=2 marker.size=8 marker.symbol=diamond-open name=limited by shared memory showlegend=True x=[57472 76928
            115840] xaxis=x3 y=[0.375 0.25 0.125] yaxis=y3
        scatter markers+text: cliponaxis=False hovertemplate=this launch: 4.00 KiB of shared memory, 50.0% legendgroup=launch
            legendrank=1 marker.color=#D55E00 marker.line.width=3 marker.size=17 marker.symbol=circle-open name=this launch
            showlegend=False text=[50.0%] textposition=top right x=[4096] xaxis=x3 y=[0.5] yaxis=y3
        """
    ),
    "overlap": _lines(
        r"""
        whole: barmode=overlay height=300 margin.t=108
        xaxis: range=[0 0.00371] title.standoff=10 title.text=time since the start (ms)
        yaxis: categoryarray=[compute copy] categoryorder=array showgrid=False
        note: text=ideal 2.00 ms x=0.002 xanchor=right xref=x y=1 yanchor=bottom yref=paper
        note: text=one after the other 3.50 ms x=0.0035 xanchor=right xref=x y=1.09 yanchor=bottom yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0.002 x1=0.002 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0.0035 x1=0.0035 xref=x y0=0 y1=1.09 yref=paper
        bar: base=[0 0.001] marker.color=#CC79A7 marker.line.color=rgba(255,255,255,0.9) marker.line.width=1 orientation=h
            showlegend=False width=0.55 x=[0.001 0.001] y=[copy copy]
        bar: base=[0.001] marker.color=#D55E00 marker.line.color=rgba(255,255,255,0.9) marker.line.width=1 orientation=h
            showlegend=False width=0.55 x=[0.0015] y=[compute]
        """
    ),
    "parallel chains": _lines(
        r"""
        whole: height=380 showlegend=True
        xaxis: range=[-0.12 0.7221] title.standoff=10 title.text=chains at once (log scale)
        yaxis: range=[-7.819 -6.977] title.standoff=10 title.text=time per hop (log scale)
        scatter lines: hoverinfo=skip line.color=#0072B2 line.dash=solid line.width=1.5 name=fastest sample, A CPU opacity=0.6 x=[1 2 4]
            y=[8e-08 5e-08 4e-08]
        scatter markers: error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=3 marker.color=#0072B2 marker.line.width=2
            marker.size=8 marker.symbol=circle name=median and 95 % interval, A CPU (measured) x=[1 2 4] y=[8e-08 5e-08 4e-08]
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.width=2 name=latency / chains x=[1 2 4] y=[8e-08 4e-08
            2e-08]
        """
    ),
    "pipeline": _lines(
        r"""
        whole: barmode=overlay height=267 legend.traceorder=normal margin.b=88 margin.t=91 showlegend=True
        xaxis: range=[0 0.318] title=time since the start (ms)
        yaxis: categoryarray=[compute copy training loads] categoryorder=array range=[-0.6 2.6] showgrid=False
        bar: base=[0 0.1 0.2] marker.color=rgba(127,127,127,0.30) marker.pattern.fgcolor=#8A8A8A marker.pattern.shape=x
            marker.pattern.size=5 name=the accelerator waits orientation=h width=0.62 x=[0.07 0.07 0.07] y=[compute compute compute]
        bar: base=[0 0.1 0.2] insidetextanchor=middle marker.color=rgba(0,0,0,0) marker.line.color=#0072B2 marker.line.width=1.5
            name=load and decode (modelled) orientation=h text=[1 2 3] textangle=0 textfont.size=11 textposition=inside width=0.62
            x=[0.06 0.06 0.06] y=[training loads training loads training loads]
        bar: base=[0.06 0.16 0.26] insidetextanchor=middle marker.color=rgba(0,0,0,0) marker.line.color=#CC79A7 marker.line.width=1.5
            name=copy (modelled) orientation=h text=[1 2 3] textangle=0 textfont.size=11 textposition=inside width=0.62 x=[0.01 0.01
            0.01] y=[copy copy copy]
        bar: base=[0.07 0.17 0.27] insidetextanchor=middle marker.color=rgba(0,0,0,0) marker.line.color=#D55E00 marker.line.width=1.5
            name=compute (modelled) orientation=h text=[1 2 3] textangle=0 textfont.size=11 textposition=inside width=0.62 x=[0.03 0.03
            0.03] y=[compute compute compute]
        """
    ),
    "profile": _lines(
        r"""
        whole: barmode=overlay height=320 showlegend=False
        xaxis: range=[0 1.06] title=time since the step began (s)
        yaxis: categoryorder=array range=[-0.6 4.6] showgrid=False
        bar: base=[0] insidetextanchor=middle marker.color=#8A8A8A marker.line.color=rgba(255,255,255,0.9) marker.line.width=0.5
            orientation=h text=[forward] textangle=0 textfont.size=11 textposition=inside width=0.7 x=[0.6] y=[your marks]
        bar: base=[0.3] insidetextanchor=middle marker.color=#8A8A8A marker.line.color=rgba(255,255,255,0.9) marker.line.width=0.5
            orientation=h text=[loss] textangle=0 textfont.size=11 textposition=inside width=0.7 x=[0.3] y=[marks inside]
        bar: base=[0.1] insidetextanchor=middle marker.color=#0072B2 marker.line.color=rgba(255,255,255,0.9) marker.line.width=0.5
            orientation=h text=[mm] textangle=0 textfont.size=11 textposition=inside width=0.7 x=[0.4] y=[operators]
        bar: base=[0.2] insidetextanchor=middle marker.color=#0072B2 marker.line.color=rgba(255,255,255,0.9) marker.line.width=0.5
            orientation=h text=[] textangle=0 textfont.size=11 textposition=inside width=0.7 x=[0.05] y=[that they call]
        bar: base=[0.4] insidetextanchor=middle marker.color=#D55E00 marker.line.color=rgba(255,255,255,0.9) marker.line.width=0.5
            orientation=h text=[gemm_kernel] textangle=0 textfont.size=11 textposition=inside width=0.7 x=[0.5] y=[device]
        """
    ),
    "race": _lines(
        r"""
        whole: bargap=0.35 height=420 showlegend=True
        xaxis: domain=[0 0.44] title=step
        xaxis2: anchor=y2 domain=[0.55 0.7] range=[-0.6 1.6] showgrid=False tickangle=0
        xaxis3: anchor=y3 domain=[0.85 1] range=[-0.6 1.6] showgrid=False tickangle=0
        yaxis: range=[0 2.12] title=loss
        yaxis2: anchor=x2 range=[0 114.5] title=samples a second
        yaxis3: anchor=x3 range=[0 2.401e+06] title=peak memory of tensors
        scatter lines: hovertemplate=step %{x:d}: %{y:.4g} line.color=#E69F00 line.width=1 opacity=0.45 showlegend=False
        scatter lines: hoverinfo=skip line.color=#E69F00 line.width=5 name=a
        scatter markers+text: cliponaxis=False hovertemplate=the next loss is no number marker.color=#E69F00 marker.size=11
            marker.symbol=x showlegend=False text=[diverged] textposition=bottom left x=[29] y=[1]
        scatter lines: hovertemplate=step %{x:d}: %{y:.4g} line.color=#0072B2 line.width=1 opacity=0.45 showlegend=False x=[0 1] y=[2
            1.5]
        scatter lines: hoverinfo=skip line.color=#0072B2 line.width=2 name=b x=[0 1] y=[2 1.5]
        scatter markers+text: cliponaxis=False hovertemplate=the next loss is no number marker.color=#0072B2 marker.size=11
            marker.symbol=x showlegend=False text=[diverged] textposition=middle right x=[1] y=[1.5]
        bar: hovertemplate=%{hovertext} hovertext=[100 50] marker.color=[#E69F00 #0072B2] showlegend=False x=[0 1] xaxis=x2 y=[100 50]
            yaxis=y2
        bar: hovertemplate=%{hovertext} hovertext=[1.00 MiB 2.00 MiB] marker.color=[#E69F00 #0072B2] showlegend=False x=[0 1] xaxis=x3
            y=[1048576 2097152] yaxis=y3
        """
    ),
    "rank memory": _lines(
        r"""
        whole: barmode=stack height=333 legend.traceorder=normal margin.t=91
        xaxis: range=[0 1.195e+09] title.standoff=10 title.text=bytes on a rank
        yaxis: autorange=reversed showgrid=False
        note: text=a GPU: 1.00 GiB x=1073741824 xanchor=right xref=x y=1 yanchor=bottom yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=2 x0=1073741824 x1=1073741824 xref=x y0=0 y1=1 yref=paper
        bar: hovertemplate=parameters: %{customdata} marker.color=rgba(0,114,178,0.35) marker.line.color=#0072B2 marker.line.width=1.5
            marker.pattern.fgcolor=#0072B2 marker.pattern.shape=/ marker.pattern.size=7 name=parameters orientation=h width=0.62
            x=[2.677e+06 1.338e+06] y=[ddp (states only) zero3 (states only)]
        bar: hovertemplate=optimizer: %{customdata} marker.color=rgba(204,121,167,0.35) marker.line.color=#CC79A7 marker.line.width=1.5
            marker.pattern.fgcolor=#CC79A7 marker.pattern.shape=\ marker.pattern.size=7 name=optimizer orientation=h width=0.62
            x=[5.354e+06 2.677e+06] y=[ddp (states only) zero3 (states only)]
        bar: hovertemplate=gradients: %{customdata} marker.color=rgba(230,159,0,0.35) marker.line.color=#E69F00 marker.line.width=1.5
            marker.pattern.fgcolor=#E69F00 marker.pattern.shape=x marker.pattern.size=7 name=gradients orientation=h width=0.62
            x=[2.677e+06 1.338e+06] y=[ddp (states only) zero3 (states only)]
        """
    ),
    "rank timeline": _lines(
        r"""
        whole: barmode=overlay height=306 legend.traceorder=normal margin.b=88 showlegend=True
        xaxis: range=[0 0.212] title=time (ms)
        yaxis: range=[3.3 -0.6] showgrid=False
        note: text=step 2 x=0.1 xanchor=left xref=x xshift=3 y=1 yanchor=bottom yref=paper
        shape: line.color=rgba(127,127,127,0.65) line.dash=dash line.width=1.5 x0=0.1 x1=0.1 y0=0 y1=1 yref=paper
        bar: base=[0 0.1] constraintext=none insidetextanchor=middle marker.color=#0072B2 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#0072B2 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.size=8 marker.pattern.solidity=0.12 name=forward (measured) orientation=h text=[forward forward] textangle=0
            textfont.size=11 textposition=inside width=0.9 x=[0.03 0.03] y=[0 0]
        bar: base=[0.03 0.03] constraintext=none insidetextanchor=middle marker.color=#009E73 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#009E73 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.shape=/ marker.pattern.size=8 marker.pattern.solidity=0.12 name=backward (measured) orientation=h
            text=[backward 2] textangle=0 textfont.size=11 textposition=inside width=0.9 x=[0.03 0.05] y=[0 2]
        bar: base=[0.08] constraintext=none insidetextanchor=middle marker.color=#E69F00 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#E69F00 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.shape=. marker.pattern.size=8 marker.pattern.solidity=0.12 name=optimizer and the rest (measured)
            orientation=h text=[] textangle=0 textfont.size=11 textposition=inside width=0.9 x=[0.01] y=[0]
        bar: base=[0.06] constraintext=none insidetextanchor=middle marker.color=#CC79A7 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#CC79A7 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.shape=\ marker.pattern.size=8 marker.pattern.solidity=0.12 name=communication (measured) orientation=h
            text=[] textangle=0 textfont.size=11 textposition=inside width=0.66 x=[0.02] y=[2.83]
        bar: base=[0.06] constraintext=none insidetextanchor=middle marker.color=rgba(127,127,127,0.25) marker.line.width=0
            marker.pattern.bgcolor=rgba(127,127,127,0.25) marker.pattern.fgcolor=#8A8A8A marker.pattern.fgopacity=0.45
            marker.pattern.shape=x marker.pattern.size=6 name=waits (measured) orientation=h text=[] textangle=0 textfont.size=11
            textposition=inside width=0.9 x=[0.02] y=[0]
        """
    ),
    "roofline": _lines(
        r"""
        whole: height=500 showlegend=True
        xaxis: range=[-1.417 3.894] title=arithmetic intensity, FLOP a byte (log scale)
        yaxis: range=[10.1 12.12] title=FLOP a second (log scale)
        note: font.size=11 text=DRAM 100 GB/s x=-0.301 xanchor=right xshift=-5 y=10.7 yanchor=middle yshift=0
        note: font.size=11 text=DRAM 100 GB/s x=-0.301 xanchor=right xshift=-5 y=10.7 yanchor=middle yshift=14
        note: font.size=11 text=L2 1.00 TB/s x=-0.301 xanchor=right xshift=-5 y=11.7 yanchor=middle yshift=0
        note: font.size=11 text=L2 1.00 TB/s x=-0.301 xanchor=right xshift=-5 y=11.7 yanchor=middle yshift=14
        note: font.size=11 text=float32 1.00 TFLOP/s x=2.778 xanchor=left xshift=5 y=12 yanchor=middle yshift=0
        note: font.size=11 text=float32 1.00 TFLOP/s x=2.778 xanchor=left xshift=5 y=12 yanchor=middle yshift=14
        note: font.size=11 text=ridge 10 FLOP a byte x=1 xanchor=left xshift=4 y=10.1 yanchor=bottom yshift=0
        note: font.size=11 text=ridge 10 FLOP a byte x=1 xanchor=left xshift=4 y=10.1 yanchor=bottom yshift=14
        shape: line.color=#0072B2 line.dash=dot line.width=1 x0=10 x1=10 y0=1.264e+10 y1=1e+12
        shape: line.color=#D55E00 line.dash=dot line.width=1 x0=10 x1=10 y0=1.264e+10 y1=1e+12
        scatter lines: hovertemplate=L2 1.00 TB/s legendgroup=roofs of Slow CPU MEASURED line.color=#0072B2 line.dash=solid line.width=2
            name=roofs of Slow CPU (measured) showlegend=True x=[0.5 1] y=[5e+11 1e+12]
        scatter lines: hovertemplate=DRAM 100 GB/s legendgroup=roofs of Slow CPU MEASURED line.color=#0072B2 line.dash=solid
            line.width=2 name=roofs of Slow CPU (measured) showlegend=False x=[0.5 10] y=[5e+10 1e+12]
        scatter lines: hovertemplate=float32 1.00 TFLOP/s legendgroup=roofs of Slow CPU MEASURED line.color=#0072B2 line.dash=solid
            line.width=2 name=roofs of Slow CPU (measured) showlegend=False x=[1 600] y=[1e+12 1e+12]
        scatter lines: hovertemplate=L2 1.00 TB/s legendgroup=roofs of A GPU MODELLED line.color=#D55E00 line.dash=dash line.width=2
            name=roofs of A GPU (modelled) showlegend=True x=[0.5 1] y=[5e+11 1e+12]
        scatter lines: hovertemplate=DRAM 100 GB/s legendgroup=roofs of A GPU MODELLED line.color=#D55E00 line.dash=dash line.width=2
            name=roofs of A GPU (modelled) showlegend=False x=[0.5 10] y=[5e+10 1e+12]
        scatter lines: hovertemplate=float32 1.00 TFLOP/s legendgroup=roofs of A GPU MODELLED line.color=#D55E00 line.dash=dash
            line.width=2 name=roofs of A GPU (modelled) showlegend=False x=[1 600] y=[1e+12 1e+12]
        scatter markers+text: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=4 marker.color=#0072B2
            marker.line.width=2 marker.size=9 marker.symbol=circle name=Slow CPU (measured) text=[add] textfont.size=11
            textposition=[middle right] x=[1] y=[2e+10]
        scatter markers+text: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=0 marker.color=#0072B2
            marker.line.width=2 marker.size=9 marker.symbol=circle-open name=Slow CPU (recorded) text=[copy] textfont.size=11
            textposition=[middle right] x=[300] y=[3e+10]
        scatter markers+text: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=0 marker.color=#0072B2
            marker.line.width=2 marker.size=9 marker.symbol=diamond-open name=Slow CPU (predicted, modelled) text=[mul] textfont.size=11
            textposition=[top center] x=[10] y=[1e+12]
        """
    ),
    "scaling": _lines(
        r"""
        whole: height=542 legend.traceorder=normal margin.t=106
        xaxis: range=[-0.1626 2.872] title=ranks (log scale)
        yaxis: range=[-0.1626 2.872] title=speed-up (log scale)
        scatter lines: hoverinfo=skip line.color=#8A8A8A line.dash=dot line.width=1.5 name=each rank gains in full x=[1 512] y=[1 512]
        scatter lines: line.color=#E69F00 line.dash=dash line.width=2 name=Amdahl's law (modelled) x=[1 8 64] y=[1 4.706 8.767]
        scatter lines: line.color=#CC79A7 line.dash=dash line.width=2 name=ring all-reduce, strong (modelled) x=[1 8 68 512] y=[1 5.092
            9.352 5.435]
        scatter markers: marker.color=#CC79A7 marker.line.width=2 marker.size=13 marker.symbol=star-open name=one more no longer helps:
            68 ranks x=[68] y=[9.352]
        scatter lines: hoverinfo=skip line.color=#CC79A7 line.dash=dash line.width=1.5 name=predicted for a perceptron, nothing overlaps
            (modelled) x=[1 2 4] y=[1 1.845 3.165]
        scatter lines: fill=tonexty fillcolor=rgba(204,121,167,0.18) hoverinfo=skip line.color=#CC79A7 line.dash=dash line.width=1.5
            name=predicted for a perceptron, all overlaps that can (modelled) x=[1 2 4] y=[1 2 4]
        scatter lines+markers: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=4 line.color=#0072B2
            line.dash=solid line.width=1.5 marker.color=#0072B2 marker.line.width=2 marker.size=10 marker.symbol=circle name=a
            perceptron, strong (measured) x=[1 2 4] y=[1 1.845 3.165]
        scatter lines+markers: cliponaxis=False error_y.color=#0072B2 error_y.thickness=1.5 error_y.width=4 line.color=#0072B2
            line.dash=dot line.width=1.5 marker.color=#0072B2 marker.line.width=2 marker.size=10 marker.symbol=square-open name=a
            perceptron, strong (recorded) x=[1 2 4] y=[1 1.845 3.165]
        """
    ),
    "stages": _lines(
        r"""
        whole: barmode=overlay height=218 legend.traceorder=normal margin.b=88 showlegend=True
        xaxis: anchor=y range=[0 6.03] title=time, in the unit of the costs
        yaxis: anchor=x domain=[0 1] position=0 range=[1.6 -0.6] showgrid=False tickfont.size=12
        bar: base=[0 2 4 5] constraintext=none hoverinfo=skip insidetextanchor=middle marker.color=rgba(0,0,0,0) marker.line.width=0
            marker.pattern.bgcolor=rgba(0,0,0,0) marker.pattern.fgcolor=#8A8A8A marker.pattern.fgopacity=0.45 marker.pattern.shape=x
            marker.pattern.size=6 name=waits (modelled) orientation=h textangle=0 textfont.size=11 textposition=inside width=0.84 x=[1 1
            1 1] y=[1 0 0 1] yaxis=y
        bar: base=[0 1 1 3] constraintext=none insidetextanchor=middle marker.color=rgba(0,114,178,0.10) marker.line.color=#0072B2
            marker.line.width=1.3 marker.pattern.bgcolor=rgba(0,114,178,0.10) marker.pattern.fgcolor=#0072B2
            marker.pattern.fgopacity=0.6 marker.pattern.size=8 marker.pattern.solidity=0.12 name=forward (modelled) orientation=h
            text=[0 1 0 1] textangle=0 textfont.size=11 textposition=inside width=0.84 x=[1 1 1 1] y=[0 0 1 1] yaxis=y
        bar: base=[2 3 4 5] constraintext=none insidetextanchor=middle marker.color=rgba(0,158,115,0.10) marker.line.color=#009E73
            marker.line.width=1.3 marker.pattern.bgcolor=rgba(0,158,115,0.10) marker.pattern.fgcolor=#009E73
            marker.pattern.fgopacity=0.6 marker.pattern.shape=/ marker.pattern.size=8 marker.pattern.solidity=0.12 name=backward
            (modelled) orientation=h text=[0 0 1 1] textangle=0 textfont.size=11 textposition=inside width=0.84 x=[1 1 1 1] y=[1 0 1 0]
            yaxis=y
        """
    ),
    "stages: a run": _lines(
        r"""
        whole: barmode=overlay height=309 legend.traceorder=normal margin.b=88 margin.t=91 showlegend=True
        xaxis: anchor=y2 range=[0 7.035] title=time since the step began (s)
        yaxis: anchor=free domain=[0.52 1] position=0 range=[1.6 -0.6] showgrid=False tickfont.size=12
        yaxis2: anchor=x domain=[0 0.48] position=0 range=[1.6 -0.6] showgrid=False tickfont.size=12
        bar: base=[0 1 4] constraintext=none hoverinfo=skip insidetextanchor=middle marker.color=rgba(0,0,0,0) marker.line.width=0
            marker.pattern.bgcolor=rgba(0,0,0,0) marker.pattern.fgcolor=#8A8A8A marker.pattern.fgopacity=0.45 marker.pattern.shape=x
            marker.pattern.size=6 name=waits (modelled) orientation=h textangle=0 textfont.size=11 textposition=inside width=0.84 x=[1 3
            2] y=[1 0 1] yaxis=y
        bar: base=[0 1] constraintext=none insidetextanchor=middle marker.color=rgba(0,114,178,0.10) marker.line.color=#0072B2
            marker.line.width=1.3 marker.pattern.bgcolor=rgba(0,114,178,0.10) marker.pattern.fgcolor=#0072B2
            marker.pattern.fgopacity=0.6 marker.pattern.size=8 marker.pattern.solidity=0.12 name=forward (modelled) orientation=h
            text=[forward forward] textangle=0 textfont.size=11 textposition=inside width=0.84 x=[1 1] y=[0 1] yaxis=y
        bar: base=[2 4] constraintext=none insidetextanchor=middle marker.color=rgba(0,158,115,0.10) marker.line.color=#009E73
            marker.line.width=1.3 marker.pattern.bgcolor=rgba(0,158,115,0.10) marker.pattern.fgcolor=#009E73
            marker.pattern.fgopacity=0.6 marker.pattern.shape=/ marker.pattern.size=8 marker.pattern.solidity=0.12 name=backward
            (modelled) orientation=h text=[backward backward] textangle=0 textfont.size=11 textposition=inside width=0.84 x=[2 2] y=[1
            0] yaxis=y
        bar: base=[0 1 4.5] constraintext=none hoverinfo=skip insidetextanchor=middle marker.color=rgba(127,127,127,0.25)
            marker.line.width=0 marker.pattern.bgcolor=rgba(127,127,127,0.25) marker.pattern.fgcolor=#8A8A8A
            marker.pattern.fgopacity=0.45 marker.pattern.shape=x marker.pattern.size=6 name=waits (measured) orientation=h textangle=0
            textfont.size=11 textposition=inside width=0.84 x=[1.5 4 2.5] y=[1 0 1] yaxis=y2
        bar: base=[0 1.5] constraintext=none insidetextanchor=middle marker.color=#0072B2 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#0072B2 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.size=8 marker.pattern.solidity=0.12 name=forward (measured) orientation=h text=[forward forward] textangle=0
            textfont.size=11 textposition=inside width=0.84 x=[1 1] y=[0 1] yaxis=y2
        bar: base=[2.5 5] constraintext=none insidetextanchor=middle marker.color=#009E73 marker.line.color=rgba(255,255,255,0.9)
            marker.line.width=0.7 marker.pattern.bgcolor=#009E73 marker.pattern.fgcolor=#FFFFFF marker.pattern.fgopacity=0.6
            marker.pattern.shape=/ marker.pattern.size=8 marker.pattern.solidity=0.12 name=backward (measured) orientation=h
            text=[backward backward] textangle=0 textfont.size=11 textposition=inside width=0.84 x=[2 2] y=[1 0] yaxis=y2
        """
    ),
    "sweep: rate": _lines(
        r"""
        whole: height=440 showlegend=True
        xaxis: range=[2.649 9.392] title.standoff=10 title.text=size (log scale)
        yaxis: range=[7.846 10.76] title.standoff=10 title.text=rate (log scale)
        note: text=half the bandwidth at 97.7 KiB x=5 xanchor=left xref=x xshift=5 y=0 yanchor=bottom yref=paper yshift=0
        note: text=memory bandwidth 40.0 GB/s (reads + writes) x=0.3 xanchor=left xref=paper y=10.6 yanchor=bottom yref=y
        note: text=bandwidth of the fit 10.0 GB/s x=0.3 xanchor=left xref=paper y=10 yanchor=top yref=y
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=1e+05 x1=1e+05 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0 x1=1 xref=paper y0=4e+10 y1=4e+10 yref=y
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0 x1=1 xref=paper y0=1e+10 y1=1e+10 yref=y
        scatter lines: fill=toself fillcolor=rgba(127,127,127,0.2) hoverinfo=skip line.width=0 name=95 % prediction interval
            showlegend=True
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.width=2 name=fit: 10.0 us + size / 10.0 GB/s
        scatter markers: error_y.color=#CC79A7 error_y.thickness=1.5 error_y.width=3 marker.color=#CC79A7 marker.line.width=2
            marker.size=8 marker.symbol=diamond name=host to device, pinned (measured)
        scatter markers: error_y.color=#009E73 error_y.thickness=1.5 error_y.width=3 marker.color=#009E73 marker.line.width=2
            marker.size=8 marker.symbol=diamond name=device to host, pinned (measured)
        scatter markers: error_y.color=#D55E00 error_y.thickness=2 error_y.width=6 hovertemplate=predicted, 977 KiB: 110 us, 95 % 110 us
            to 110 us marker.color=#D55E00 marker.line.width=2 marker.size=11 marker.symbol=square-open name=predicted, 977 KiB: 110 us,
            95 % 110 us to 110 us x=[1e+06] y=[9.091e+09]
        """
    ),
    "sweep: seconds": _lines(
        r"""
        whole: height=440 showlegend=True
        xaxis: range=[2.649 9.392] title.standoff=10 title.text=size (log scale)
        yaxis: range=[-5.242 -0.7272] title.standoff=10 title.text=time (log scale)
        note: text=half the bandwidth at 97.7 KiB x=5 xanchor=left xref=x xshift=5 y=1 yanchor=top yref=paper yshift=0
        note: text=latency 10.0 us x=1 xanchor=right xref=paper y=-5 yanchor=bottom yref=y
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=1e+05 x1=1e+05 xref=x y0=0 y1=1 yref=paper
        shape: line.color=#7C7C7C line.dash=dash line.width=1.5 x0=0 x1=1 xref=paper y0=1e-05 y1=1e-05 yref=y
        scatter lines: fill=toself fillcolor=rgba(127,127,127,0.2) hoverinfo=skip line.width=0 name=95 % prediction interval
            showlegend=True
        scatter lines: hoverinfo=skip line.color=#7C7C7C line.dash=dash line.width=2 name=fit: 10.0 us + size / 10.0 GB/s
        scatter markers: error_y.color=#CC79A7 error_y.thickness=1.5 error_y.width=3 marker.color=#CC79A7 marker.line.width=2
            marker.size=8 marker.symbol=diamond name=host to device, pinned (measured)
        scatter markers: error_y.color=#009E73 error_y.thickness=1.5 error_y.width=3 marker.color=#009E73 marker.line.width=2
            marker.size=8 marker.symbol=diamond name=device to host, pinned (measured)
        scatter markers: error_y.color=#D55E00 error_y.thickness=2 error_y.width=6 hovertemplate=predicted, 977 KiB: 110 us, 95 % 110 us
            to 110 us marker.color=#D55E00 marker.line.width=2 marker.size=11 marker.symbol=square-open name=predicted, 977 KiB: 110 us,
            95 % 110 us to 110 us x=[1e+06] y=[0.00011]
        """
    ),
    "training": _lines(
        r"""
        whole: barmode=stack height=400 legend.traceorder=normal showlegend=True
        xaxis: anchor=y domain=[0 1] title=step
        xaxis2: anchor=y2 domain=[0 1] range=[0 0.01272] title=a step, part by part (ms)
        yaxis: domain=[0.44 1] range=[0 2.12] title=loss
        yaxis2: anchor=x2 domain=[0 0.14] showgrid=False showticklabels=False
        scatter lines: hovertemplate=step %{x:d}: %{y:.4g} line.color=#0072B2 line.width=1 opacity=0.45 showlegend=False
        scatter lines: hoverinfo=skip line.color=#0072B2 line.width=2.5 showlegend=False
        bar: hovertemplate=data: 1.00 ms marker.color=#0072B2 name=data orientation=h x=[0.001] xaxis=x2 y=[] yaxis=y2
        bar: hovertemplate=copy: 2.00 ms marker.color=#CC79A7 name=copy orientation=h x=[0.002] xaxis=x2 y=[] yaxis=y2
        bar: hovertemplate=forward: 3.00 ms marker.color=#009E73 name=forward orientation=h x=[0.003] xaxis=x2 y=[] yaxis=y2
        bar: hovertemplate=backward: 5.00 ms marker.color=#D55E00 name=backward orientation=h x=[0.005] xaxis=x2 y=[] yaxis=y2
        bar: hovertemplate=optimizer: 1.00 ms marker.color=#E69F00 name=optimizer orientation=h x=[0.001] xaxis=x2 y=[] yaxis=y2
        """
    ),
}
